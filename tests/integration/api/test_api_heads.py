"""HEAD wherever GET is: the same status and headers, and no body. And the headers of every answer."""

import httpx2
import pytest
from fastapi.routing import APIRoute
from starlette.routing import Route

from omni_jobs.settings import Settings
from omni_jobs.storage import artifact_key
from omni_jobs.web.app import create_app
from tests.integration.api_server import ApiServer, serve

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
OF_EACH_ANSWER = {"date", "x-request-id"}
ROUTES = [each for each in create_app(Settings()).routes if isinstance(each, Route) and "GET" in (each.methods or ())]
PAGES = sorted({each.path_format for each in ROUTES if isinstance(each, APIRoute) and not each.include_in_schema})
WITH_GET = sorted({each.path_format for each in ROUTES} - set(PAGES))
OF_PAGES = {"version": "x", "stage": "first", "done": "1", "key_id": "x", "action_id": "x"}
NOBODY = "0" * 32
KEY = "omni_" + "Ab_-9" * 8 + "xyz"


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings


def same_head(api: ApiServer, path: str, **headers: str) -> httpx2.Response:
    """Return the answer to HEAD, whose status and headers are those of GET."""
    got, head = (api.http.request(method, path, headers=headers) for method in ("GET", "HEAD"))
    assert head.status_code == got.status_code, path
    # The status names the time, so that its length may differ from one answer to the next.
    passed = OF_EACH_ANSWER | ({"content-length"} if path in ("/v1/status", "/readyz") else set())
    passed |= {"content-length", "etag"} if not path.startswith("/v1/") else set()  # pages name it, too
    theirs, ours = ({name: value for name, value in each.headers.items() if name not in passed} for each in (got, head))
    assert ours == theirs, path
    assert head.content == b""
    return head


def artifact(api: ApiServer, job_id: str, name: str, data: bytes) -> None:
    ref = api.services.store.put(artifact_key(job_id, "first", 1, name), [data])
    with api.services.db.begin() as tx:
        tx.exec_driver_sql(
            "INSERT INTO artifacts (job_id, name, stage_run_id, media_type, ref, created_at)"
            " SELECT job_id, ?, id, 'audio/wav', ?, 1.0 FROM stage_runs WHERE job_id = ? LIMIT 1",
            (name, ref.model_dump_json(), job_id),
        )


def test_head_answers_wherever_get_does(api: ApiServer) -> None:
    job_id = api.http.post("/v1/jobs", json=ECHO).json()["id"]
    artifact(api, job_id, "speech.wav", b"RIFF" * 100)
    film = api.http.post("/v1/jobs", json={**ECHO, "model": "echo_media", "modalities": ["video"]}).json()["id"]
    artifact(api, film, "video.mp4", b"ftyp" * 100)
    response = api.http.post("/v1/responses", json={"model": "echo", "input": "Hello", "background": True}).json()["id"]
    names = {
        "response_id": response,
        "job_id": job_id,
        "name": "speech.wav",
        "model": "echo",
        "digits": film.removeprefix("job-"),
    }
    assert "/v1/jobs/{job_id}/artifacts/{name}" in WITH_GET
    for path in WITH_GET:
        query = "?pipeline=echo&stage=first" if path == "/v1/scaling" else ""
        head = same_head(api, path.format(**names) + query)
        assert head.status_code == 200, path
        assert head.headers["cross-origin-resource-policy"] == "same-origin"
        assert head.headers["x-frame-options"] == "DENY"
    for path in PAGES:
        same_head(api, path.format(**names, **OF_PAGES))


@pytest.mark.parametrize("size", [400, 3 << 20])
def test_the_head_of_an_artifact_has_its_length_and_etag_and_reads_none_of_it(api: ApiServer, size: int) -> None:
    job_id = api.http.post("/v1/jobs", json=ECHO).json()["id"]
    artifact(api, job_id, "speech.wav", b"x" * size)
    path = f"/v1/jobs/{job_id}/artifacts/speech.wav"
    head = same_head(api, path)
    assert int(head.headers["content-length"]) == size
    assert head.headers["etag"]
    part = same_head(api, path, Range="bytes=10-19")
    assert (part.status_code, part.headers["content-length"]) == (206, "10")
    assert part.headers["content-range"] == f"bytes 10-19/{size}"
    assert same_head(api, path, **{"If-None-Match": head.headers["etag"]}).status_code == 304
    assert same_head(api, path, Range=f"bytes={size}-").status_code == 416


def test_the_head_of_an_error(api: ApiServer) -> None:
    for path in ("/nowhere", "/v1/jobs/job-0", "/v1/jobs?limit=x", f"/v1/jobs/job-{'0' * 32}"):
        assert same_head(api, path).status_code in (404, 422)
    refused = same_head(api, "/v1/jobs/bulk")
    assert (refused.status_code, refused.headers["allow"]) == (405, "OPTIONS, POST")
    assert same_head(api, "/healthz", Host="evil.example").status_code == 421


def test_the_head_of_what_needs_a_key(settings: Settings) -> None:
    with serve(settings.model_copy(update={"auth": "keys"})) as api:
        for path in WITH_GET:
            is_open = path in ("/healthz", "/readyz", "/openapi.json")
            names = {
                "job_id": f"job-{NOBODY}",
                "digits": NOBODY,
                "response_id": f"resp_{NOBODY}",
                "name": "x",
                "model": "x",
            }
            status = same_head(api, path.format(**names)).status_code
            assert status == (200 if is_open else 401), path
        for path in PAGES:
            if not path.startswith(("/static/", "/signin")):
                status = same_head(api, path.format(**names, **OF_PAGES)).status_code
                assert status == (404 if path.endswith("/plug") else 303), path  # it is of embedded stacks alone


def test_a_key_in_a_url_stands_in_no_answer(api: ApiServer) -> None:
    for path in (f"/{KEY}", f"/v1/jobs/{KEY}", f"/v1/jobs?{KEY}=1", f"/v1/jobs?limit={KEY}", f"/%6F{KEY[1:]}"):
        answer = api.http.get(path)
        assert answer.status_code in (404, 422)
        assert KEY not in answer.text, path
        assert KEY[5:] not in answer.text, path
    assert KEY not in str(api.http.get("/healthz", headers={"X-Request-Id": KEY}).headers)
    assert api.http.post("/v1/jobs", json=ECHO | {KEY: 1}).status_code == 422
    assert KEY not in api.http.post("/v1/jobs", json=ECHO | {KEY: 1}).text


def test_every_get_of_the_api_is_walked() -> None:
    routes = [route for route in create_app(Settings()).routes if isinstance(route, APIRoute)]
    assert {route.path_format for route in routes if "GET" in route.methods} <= {*WITH_GET, *PAGES}
