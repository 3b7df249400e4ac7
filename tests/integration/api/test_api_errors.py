"""Every route refuses in the same shape: what it does not know, who may not ask, and what is broken behind it."""

import re
import socket
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from omni_jobs.database.database import Database
from omni_jobs.settings import Settings
from omni_jobs.web import server as server_module
from omni_jobs.web.app import create_app
from tests.integration.api_server import ApiServer, checked_error, parsed_error, serve, server_settings
from tests.oracles import samples

NO_DATABASE = "sqlite:////dev/null/none"
OPERATIONS = {
    (method.upper(), path): operation
    for path, methods in create_app(Settings()).openapi()["paths"].items()
    for method, operation in methods.items()
}
ROUTES = sorted(OPERATIONS)
OF_OPENAI = {route for route, operation in OPERATIONS.items() if "openai" in operation["tags"]}
OF_JOBS = [route for route in ROUTES if "{job_id}" in route[1]]
CHANGES = [route for route in ROUTES if route[0] != "GET"]
WITHOUT_DATABASE = (
    ("GET", "/healthz"),
    ("POST", "/v1/session"),
    ("DELETE", "/v1/session"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model}"),
    ("GET", "/metrics"),
)
OF_THE_DATABASE = [route for route in ROUTES if route not in WITHOUT_DATABASE]
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/v1/jobs"): {"json": {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}},
    ("POST", "/v1/chat/completions"): {"json": {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}},
    ("POST", "/v1/responses"): {"json": {"model": "echo", "input": "Hello"}},
    ("POST", "/v1/audio/speech"): {"json": {"model": "speech", "input": "Hello"}},
    ("POST", "/v1/audio/transcriptions"): {"data": {"model": "echo_media"}, "files": {"file": samples.wav(0.2)}},
    ("POST", "/v1/images/generations"): {"json": {"model": "echo_media", "prompt": "A boat"}},
    ("POST", "/v1/images/edits"): {
        "data": {"model": "echo_media", "prompt": "A boat"},
        "files": {"image": samples.image(64, 64)},
    },
    ("POST", "/v1/videos"): {"json": {"model": "echo_media", "prompt": "A boat"}},
    ("POST", "/v1/jobs/bulk"): {"content": b"", "headers": {"Content-Type": "application/jsonl"}},
    ("POST", "/v1/jobs/{job_id}/fork"): {"json": {"from_stage": "second"}},
    **{
        ("POST", f"/v1/jobs/{action}"): {"json": {"pipeline": "echo"}}
        for action in ("cancel", "retry", "advance", "delete")
    },
}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, valkey_server: str) -> Settings:
    settings = server_settings(tmp_path_factory.mktemp("errors"), valkey_server)
    Database(settings.resolved_database_url).migrate()
    return settings


@pytest.fixture(scope="module")
def api(settings: Settings) -> Iterator[ApiServer]:
    with serve(settings) as server:
        yield server


@pytest.fixture(scope="module")
def broken(settings: Settings) -> Iterator[ApiServer]:
    """A server whose database is away."""
    with serve(settings.model_copy(update={"database_url": NO_DATABASE})) as server:
        yield server


def refusal(answer: httpx2.Response) -> tuple[int, str, str | None]:
    error = checked_error(answer.status_code, answer.headers, answer.content)
    return answer.status_code, error["code"], error["field"]


def path_of(route: tuple[str, str]) -> str:
    name = "echo" if "/pipelines/" in route[1] else "text.txt"
    digits = "0198f2c4a1b27c3d8e4f5a6b7c8d9e0f"
    ids = {"job_id": f"job-{digits}", "digits": digits, "response_id": f"resp_{digits}"}
    return route[1].format(**ids, name=name, stage="first", model="echo", worker="w", reference="echo@1")


def named(routes: list[tuple[str, str]]) -> Any:
    return pytest.mark.parametrize("route", routes, ids=" ".join)


@named(ROUTES)
def test_a_wrong_method(api: ApiServer, route: tuple[str, str]) -> None:
    assert refusal(api.http.put(path_of(route))) == (405, "method_not_allowed", None)


@named(ROUTES)
def test_a_path_below(api: ApiServer, route: tuple[str, str]) -> None:
    assert refusal(api.http.request(route[0], f"{path_of(route)}/below/it")) == (404, "not_found", None)


@named(ROUTES)
def test_an_unknown_host(api: ApiServer, route: tuple[str, str]) -> None:
    answer = api.http.request(route[0], path_of(route), headers={"Host": "elsewhere.example"})
    assert refusal(answer) == (421, "unknown_host", "Host")


@named(CHANGES)
def test_a_foreign_page(api: ApiServer, route: tuple[str, str]) -> None:
    answer = api.http.request(route[0], path_of(route), headers={"Origin": "https://elsewhere.example"})
    assert refusal(answer) == (403, "foreign_origin", "Origin")


@named([route for route in ROUTES if route[1].startswith("/v1")])
def test_an_unknown_query(api: ApiServer, route: tuple[str, str]) -> None:
    status = 400 if route in OF_OPENAI else 422
    assert refusal(api.http.request(route[0], f"{path_of(route)}?colour=red")) == (status, "invalid_request", "colour")


KNOWN_JOB = "/v1/jobs/job-0198f2c4a1b27c3d8e4f5a6b7c8d9e0f"
QUERIES = {
    "/v1/jobs?limit=abc": "must be a whole number, like 5",
    "/v1/jobs?limit=": "must be a whole number, like 5",
    "/v1/jobs?limit=1.5": "must be a valid integer",
    "/v1/jobs?limit=1e400": "must be a valid integer",
    "/v1/jobs?limit=0": "must be greater than or equal to 1",
    "/v1/jobs?limit=101": "must be less than or equal to 100",
    "/v1/jobs?cursor=x": "must match ^job-[0-9a-f]{32}$",
    "/v1/jobs?status=done": (
        "must be 'queued', 'in_progress', 'cancelling', 'completed', 'failed', 'cancelled' or 'expired'"
    ),
    "/v1/jobs?pipeline=A": "must match ^[a-z][a-z0-9_]{0,39}(@[0-9A-Za-z.-]{1,20})?$",
    "/v1/jobs?brief=maybe": "must be true or false",
    f"{KNOWN_JOB}?wait=forever": "must be a number, like 5 or 0.5",
    "/v1/usage?by=foo": "must be one or more of day, tenant, pipeline, stage, with commas between them",
    f"{KNOWN_JOB}?wait=-1": "must be greater than or equal to 0",
    f"{KNOWN_JOB}?wait=61": "must be less than or equal to 60",
    f"{KNOWN_JOB}?wait=1&wait=2": "given twice",
    f"{KNOWN_JOB}?nope=1": "unknown in this query; known: wait",
}


@pytest.mark.parametrize("path", QUERIES)
def test_a_wrong_query_is_refused_in_the_apis_own_words(api: ApiServer, path: str) -> None:
    answer = api.http.get(path)
    name = path.partition("?")[2].partition("=")[0]
    assert refusal(answer) == (422, "invalid_request", name)
    assert answer.json()["error"]["message"] == QUERIES[path]


@pytest.mark.parametrize("key", ["a b", "x" * 256])
def test_a_wrong_header_is_refused_in_the_apis_own_words(api: ApiServer, key: str) -> None:
    answer = api.http.post("/v1/jobs", headers={"Idempotency-Key": key}, **BODIES["POST", "/v1/jobs"])
    assert refusal(answer) == (422, "invalid_request", "Idempotency-Key")
    assert answer.json()["error"]["message"] == "must be 1 to 255 visible ASCII characters"


def test_a_stage_with_a_long_name_is_refused_in_the_apis_own_words(api: ApiServer) -> None:
    answer = api.http.post(f"{KNOWN_JOB}/retry?from_stage={'x' * 101}")
    assert refusal(answer) == (422, "invalid_request", "from_stage")
    assert answer.json()["error"]["message"] == "must have at most 100 characters"


@named(OF_JOBS)
def test_an_unknown_job(api: ApiServer, route: tuple[str, str]) -> None:
    body = BODIES.get(route, {})
    assert refusal(api.http.request(route[0], path_of(route), **body))[:2] == (404, "not_found")
    no_id = path_of(route).replace("job-0198f2c4", "job-")
    assert refusal(api.http.request(route[0], no_id, **body)) == (404, "not_found", "job_id")


@named([("POST", "/v1/jobs"), ("POST", "/v1/jobs/bulk"), ("POST", "/v1/jobs/delete")])
def test_an_unknown_type_of_body(api: ApiServer, route: tuple[str, str]) -> None:
    answer = api.http.post(route[1], content=b"a", headers={"Content-Type": "text/plain"})
    assert refusal(answer) == (415, "unsupported_content_type", "Content-Type")


@named([route for route in OF_THE_DATABASE if route != ("POST", "/v1/jobs/bulk")])
def test_a_database_that_is_away(broken: ApiServer, route: tuple[str, str]) -> None:
    query = {"pipeline": "echo", "stage": "first"} if route[1] == "/v1/scaling" else None
    answer = broken.http.request(route[0], path_of(route), params=query, **BODIES.get(route, {}))
    assert refusal(answer) == (503, "database_unavailable", None)
    assert re.fullmatch(r"\d+", answer.headers["retry-after"])


def test_a_request_that_a_stopping_server_waits_for_in_vain(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_GRACE_S", 0)
    with serve(settings) as api, socket.create_connection((api.host, api.port), timeout=30) as connection:
        head = "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n"
        connection.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")  # the route reads the body now
        api.stop()
        status, headers, error = parsed_error(connection.makefile("rb").read())
    assert (status, error["code"]) == (503, "server_busy")
    assert (headers["x-content-type-options"], headers["retry-after"]) == ("nosniff", "1")


def test_a_line_of_a_bulk_is_refused_as_a_single_submit_is(api: ApiServer) -> None:
    headers = {"Content-Type": "application/jsonl"}
    bulk = api.http.post("/v1/jobs/bulk", content=b'{"model": "echo"}\n', headers=headers)
    single = api.http.post("/v1/jobs", content=b'{"model": "echo"}', headers={"Content-Type": "application/json"})
    line, _ = bulk.iter_lines()
    assert refusal(single) == (422, "invalid_request", "messages")
    assert line == '{"line": 1, "error": ' + single.text.removeprefix('{"error": ')
