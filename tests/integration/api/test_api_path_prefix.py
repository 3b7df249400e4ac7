"""The API below a path, behind a real reverse proxy that strips the path or leaves it."""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urljoin

import httpx2
import pytest

from omni_jobs.client import Client
from omni_jobs.settings import Settings
from tests.integration.api.test_api_heads import ECHO, artifact
from tests.integration.api_server import ApiServer

PREFIX = "/jobs-api"
WAIT_S = 30.0


@contextmanager
def proxy(api: ApiServer, *, strips: bool) -> Iterator[str]:
    """The URL of a reverse proxy that shows the API below PREFIX, and answers 404 to everything else."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self) -> None:
            if not self.path.startswith(f"{PREFIX}/"):
                self.send_error(404)
                return
            path = self.path.removeprefix(PREFIX) if strips else self.path
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            answer = httpx2.request(
                self.command, f"http://{api.host}:{api.port}{path}", content=body, headers=headers, trust_env=False
            )
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name not in ("content-length", "connection", "date", "transfer-encoding"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_POST = do_DELETE = pass_on

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}{PREFIX}/"
        finally:
            server.shutdown()
            thread.join(WAIT_S)


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings.model_copy(update={"root_path": PREFIX})


@pytest.mark.parametrize("strips", [True, False], ids=["stripped", "left"])
def test_every_url_leads_through_the_proxy(api: ApiServer, strips: bool) -> None:
    with proxy(api, strips=strips) as base, closing(httpx2.Client(trust_env=False, timeout=WAIT_S)) as http:
        made = http.post(urljoin(base, "v1/jobs"), json=ECHO)
        assert made.status_code == 202
        location = urljoin(base, made.headers["location"])
        job_id = made.json()["id"]
        artifact(api, job_id, "speech.wav", b"RIFF")
        [shown] = http.get(location).json()["artifacts"]
        [listed] = http.get(urljoin(base, "v1/jobs")).json()["jobs"][0]["artifacts"]
        [recent] = http.get(urljoin(base, "v1/status")).json()["recent"][0]["artifacts"]
        assert shown["url"] == listed["url"] == recent == f"{PREFIX}/v1/jobs/{job_id}/artifacts/speech.wav"
        assert http.get(urljoin(base, shown["url"])).content == b"RIFF"
        document = http.get(urljoin(base, "openapi.json")).json()
        assert [server["url"] for server in document["servers"]] == [PREFIX]
        page = http.get(base)
        assert page.status_code == 200
        scripts = re.findall(r'<script src="([^"]+)"', page.text)
        assert len(scripts) > 1
        for script in scripts:
            assert http.get(urljoin(base, script)).headers["content-type"].startswith("text/javascript")
        assert http.get(urljoin(base, "healthz")).status_code == 200
        missing = http.post(urljoin(base, "v1/status"))
        assert (missing.status_code, missing.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
        with closing(Client(base.rstrip("/"))) as client:
            assert client.get(job_id).id == job_id
            assert client.artifact(job_id, "speech.wav") == b"RIFF"


def test_the_page_is_found_without_its_last_slash(api: ApiServer) -> None:
    sent = api.http.get(PREFIX, headers={"Host": "localhost"})
    assert (sent.status_code, sent.headers["location"]) == (307, f"{PREFIX}/")
    assert api.http.get(PREFIX, follow_redirects=True).headers["content-type"].startswith("text/html")
    assert api.http.post(PREFIX).status_code == 404
    assert api.http.get(f"{PREFIX}s").status_code == 404


def test_without_the_setting_urls_are_those_of_the_root() -> None:
    assert Settings().root_path == ""


@pytest.mark.parametrize("wrong", ["jobs", "/jobs/", "//evil.example", "/a b", "/a?b", "/"])
def test_what_is_no_path_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="root_path"):
        Settings(root_path=wrong)
