"""Requests that a browser sends for pages of other origins, and for names that point at this server."""

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import pytest
from playwright.sync_api import Browser, Page

from omni_jobs.jobs import Completion, NewWorker, StoredArtifact
from omni_jobs.settings import Settings
from omni_jobs.storage.keys import artifact_key
from tests.integration.api_server import ApiServer, serve
from tests.oracles import samples
from tests.services.chromium import running_chromium

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
NOWHERE = "job-0198f2c4a1b27c3d8e4f5a6b7c8d9e0f"


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings


def code_of(answer: httpx2.Response) -> str:
    return str(answer.json()["error"]["code"])


# Hosts


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8000", "localhost.", "api.localhost", "127.0.0.1", "127.0.0.1:8000", "[::1]:8000", "[::1]",
     "10.1.2.3:8000"],
)  # fmt: skip
def test_loopback_names_and_addresses_are_served(api: ApiServer, host: str) -> None:
    assert api.http.get("/v1/jobs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "x@localhost", ""]
)
def test_any_other_name_is_not(api: ApiServer, host: str) -> None:
    for method, path in (("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("DELETE", f"/v1/jobs/{NOWHERE}")):
        answer = api.http.request(method, path, headers={"Host": host})
        assert (answer.status_code, code_of(answer)) == (421, "unknown_host")
        assert "OMNI_JOBS_ALLOWED_HOSTS" in answer.json()["error"]["message"]


def test_the_setting_names_more(settings: Settings) -> None:
    with serve(settings.model_copy(update={"allowed_hosts": ("api", "Jobs.example.com")})) as api:
        for host, status in (("api:8000", 200), ("jobs.example.com", 200), ("localhost", 200), ("evil.example", 421)):
            assert api.http.get("/v1/jobs", headers={"Host": host}).status_code == status
    with serve(settings.model_copy(update={"allowed_hosts": ("*",)})) as api:
        assert api.http.get("/v1/jobs", headers={"Host": "evil.example"}).status_code == 200


def test_the_setting_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_JOBS_ALLOWED_HOSTS", "api, jobs.example.com")
    assert Settings().allowed_hosts == ("api", "jobs.example.com")
    assert Settings().to_environment()["OMNI_JOBS_ALLOWED_HOSTS"] == "api,jobs.example.com"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),  # a balancer's check
        (b"GET http://evil.example/healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
    ],
)
def test_one_host_is_named(api: ApiServer, head: bytes, status: int) -> None:
    with socket.create_connection((api.host, api.port), timeout=30) as connection:
        connection.sendall(head)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 %d " % status)


# Origins

CHANGES = (
    ("POST", "/v1/jobs"),
    ("POST", "/v1/jobs/bulk"),
    ("POST", f"/v1/jobs/{NOWHERE}/cancel"),
    ("POST", f"/v1/jobs/{NOWHERE}/retry"),
    ("DELETE", f"/v1/jobs/{NOWHERE}"),
)


@pytest.mark.parametrize(
    "sent",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://[bad"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost:8000", "Host": "localhost:8000"},
    ],
)
def test_no_change_by_another_origin(api: ApiServer, sent: Mapping[str, str]) -> None:
    for method, path in CHANGES:
        answer = api.http.request(method, path, headers=dict(sent))
        assert (answer.status_code, code_of(answer)) == (403, "foreign_origin"), path
    assert api.http.post("/v1/jobs", files={"request": json.dumps(ECHO)}, headers=dict(sent)).status_code == 403
    assert api.http.get("/v1/jobs", headers=dict(sent)).json()["jobs"] == []


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"Origin": "http://localhost:8000", "Host": "localhost:8000"},
        {"Origin": "https://localhost", "Host": "localhost"},
        {"Origin": "https://localhost", "Host": "localhost:443"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://behind.a.proxy"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_changes_by_no_page_or_the_servers_own(api: ApiServer, sent: Mapping[str, str]) -> None:
    assert api.http.post("/v1/jobs", json=ECHO, headers=dict(sent)).status_code == 202


# A browser


class _Evil(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>evil</title>")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def evil() -> Iterator[int]:
    """The port of a page of another origin."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Evil)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_chromium("--host-resolver-rules=MAP evil.example 127.0.0.1") as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """With no cookie and no store of another test."""
    with browser.new_context() as context:
        yield context.new_page()


FETCH = """async ([method, url, body]) => {
    const form = new FormData();
    form.append("request", JSON.stringify(body));
    const options = {method, mode: "no-cors", ...(method === "POST" ? {body: form} : {})};
    try { const answer = await fetch(url, options); return answer.type; } catch (error) { return String(error); }
}"""
FORM = """([url, body]) => {
    const form = document.createElement("form");
    Object.assign(form, {action: url, method: "POST", enctype: "multipart/form-data"});
    const field = document.createElement("input");
    Object.assign(field, {name: "request", value: JSON.stringify(body)});
    form.append(field); document.body.append(form); form.submit();
}"""


def test_a_page_of_another_origin_changes_nothing(api: ApiServer, evil: int, page: Page) -> None:
    job = api.http.post("/v1/jobs", json=ECHO).json()
    base = f"http://127.0.0.1:{api.port}"
    for origin in (f"http://127.0.0.1:{evil}", f"http://localhost:{evil}", f"http://evil.example:{evil}"):
        page.goto(origin)
        for path in ("/v1/jobs", f"/v1/jobs/{job['id']}/cancel", f"/v1/jobs/{job['id']}/retry"):
            page.evaluate(FETCH, ["POST", base + path, ECHO])
        page.evaluate(FORM, [f"{base}/v1/jobs", ECHO])
        page.wait_for_url(f"{base}/v1/jobs")
        assert "foreign_origin" in page.content()
    [listed] = api.http.get("/v1/jobs").json()["jobs"]
    assert (listed["id"], listed["status"]) == (job["id"], "queued")


def test_a_name_that_is_pointed_here_reads_nothing(api: ApiServer, page: Page) -> None:
    """DNS rebinding: to the browser it is the page's own origin."""
    api.http.post("/v1/jobs", json=ECHO)
    answer = page.goto(f"http://evil.example:{api.port}/v1/jobs")
    assert answer is not None
    assert answer.status == 421
    assert page.evaluate("async () => (await (await fetch('/v1/jobs')).json()).error.code") == "unknown_host"


def test_the_servers_own_page_works(api: ApiServer, page: Page) -> None:
    page.goto(f"http://localhost:{api.port}/")
    status = page.evaluate(
        "async (body) => (await fetch('/v1/jobs', {method: 'POST', body: JSON.stringify(body),"
        " headers: {'Content-Type': 'application/json'}})).status",
        ECHO,
    )
    assert status == 202


def drawn(api: ApiServer, **files: tuple[str, bytes]) -> str:
    """Return a job whose first stage has left these files, names without their suffixes, as a worker leaves them."""
    job_id = str(api.http.post("/v1/jobs", json=ECHO).json()["id"])
    jobs, echo = api.services.jobs, api.services.pipelines["echo"]
    jobs.register_worker(NewWorker("w", "w", echo.stage_id("first"), "host", 1, 5, echo.version), 60.0)
    [claim] = jobs.claim("w", 5).claims
    artifacts = []
    for name, (media_type, data) in files.items():
        full = f"{name}.{media_type.partition('/')[2].removesuffix('+xml')}"
        ref = api.services.store.put(artifact_key(job_id, "first", 1, full), [data], media_type=media_type)
        artifacts.append(StoredArtifact(full, media_type, ref))
    made = Completion(
        claim.stage_run_id, claim.attempt, "w", inline_payload=b"x", payload_bytes=1, artifacts=artifacts, result={}
    )
    assert jobs.report([made])[0].won
    return job_id


def test_a_very_large_picture_is_linked_alone(api: ApiServer) -> None:
    job = drawn(api, huge=("image/png", bytes((16 << 20) + 1)), small=("image/png", samples.image()))
    [recent] = api.http.get("/v1/status").json()["recent"]
    base = f"/v1/jobs/{job}/artifacts"
    assert sorted(recent["artifacts"]) == [f"{base}/huge.png", f"{base}/small.png"]
    assert recent["pictures"] == [f"{base}/small.png"]
