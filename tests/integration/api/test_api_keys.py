"""Keys over HTTP, on both databases: who is refused and how, and that nobody learns of another tenant's jobs."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from omni_jobs.client import Client
from omni_jobs.database.database import Database
from omni_jobs.errors import MissingScope, Unauthenticated
from omni_jobs.jobs import Completion, NewWorker, StoredArtifact, new_job_id
from omni_jobs.settings import Settings
from omni_jobs.storage import artifact_key
from omni_jobs.tenants.key_store import ApiKeys, NewApiKey
from omni_jobs.tenants.lookup_cache import KEPT_S
from omni_jobs.tenants.tenant_store import Tenants
from tests.integration.api_server import ApiServer, serve
from tests.integration.job_steps import release

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
SEEN_WITHIN_S = 5.0


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"auth": "keys"})


@pytest.fixture
def keys(database: Database) -> ApiKeys:
    for tenant in ("acme", "globex"):
        Tenants(database).create(tenant)
    return ApiKeys(database)


@pytest.fixture
def api(settings: Settings, keys: ApiKeys) -> Iterator[ApiServer]:
    with serve(settings) as server:
        yield server


def bearer(key: NewApiKey) -> dict[str, str]:
    return {"Authorization": f"Bearer {key.key}"}


def submitted(api: ApiServer, key: NewApiKey, **headers: str) -> str:
    answer = api.http.post("/v1/jobs", json=ECHO, headers={**bearer(key), **headers})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def completed(api: ApiServer, job_id: str) -> None:
    """Run a job's first stage, and give it an artifact, as a worker would; then cancel the rest."""
    jobs, echo = api.services.jobs, api.services.pipelines["echo"]
    jobs.register_worker(NewWorker("w", "w", echo.stage_id("first"), "host", 1, 5, echo.version), 60.0)
    claims = jobs.claim("w", 5).claims
    [claim] = [each for each in claims if each.job_id == job_id]
    release(jobs, [(each.stage_run_id, each.attempt) for each in claims if each is not claim], "w")
    ref = api.services.store.put(artifact_key(job_id, "first", 1, "audio.wav"), [b"RIFF"])
    made = Completion(
        claim.stage_run_id, claim.attempt, "w", inline_payload=b"x", payload_bytes=1,
        artifacts=[StoredArtifact("audio.wav", "audio/wav", ref)], result={"text": "secret"},
    )  # fmt: skip
    assert jobs.report([made])[0].won
    jobs.cancel(job_id)


# Who is refused


def test_a_request_without_a_key_that_counts_is_401(api: ApiServer, keys: ApiKeys, caplog: Any) -> None:
    good, revoked = keys.create("acme", ["admin"]), keys.create("acme", ["admin"])
    expired = keys.create("acme", ["admin"], expires_in_s=1e-6)
    keys.revoke(revoked.id)
    wrong = [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer  " + good.key},
        {"Authorization": "Basic " + good.key},
        {"Authorization": good.key},
        {"Authorization": f"Bearer {good.key}x"},
        {"Authorization": f"Bearer {good.key[:-1]}"},
        {"Authorization": f"Bearer omni_{'A' * 43}"},
        {"Authorization": "Bearer " + "x" * 10_000},
        bearer(revoked),
        bearer(expired),
        {"Cookie": f"omni_jobs_key={good.key}"},
        {"Cookie": f"omni_jobs_session={good.key}"},
    ]
    bodies = set()
    for headers in wrong:
        answer = api.http.get("/v1/status", headers=headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), headers
        assert answer.json()["error"]["code"] == "unauthenticated"
        bodies.add(answer.content)
    assert len(bodies) == 1  # nothing tells a key that was from one that never was
    twice = [("Authorization", f"Bearer {good.key}")] * 2
    assert api.http.get("/v1/status", headers=twice).status_code == 401
    assert api.http.get("/v1/status", headers=bearer(good)).status_code == 200
    assert api.http.get("/v1/status", headers={"Authorization": f"bearer {good.key}"}).status_code == 200
    assert not any(key.key in caplog.text for key in (good, revoked, expired))


def test_a_header_with_a_megabyte_is_refused_before_it_is_read(api: ApiServer) -> None:
    answer = api.http.get("/v1/status", headers={"Authorization": "Bearer " + "x" * (1 << 20)})
    assert answer.status_code == 431


def test_health_and_the_page_of_the_sign_in_need_no_key(api: ApiServer) -> None:
    for path in ("/healthz", "/readyz", "/signin"):
        assert api.http.get(path).status_code == 200, path


def test_whoever_has_no_key_is_led_from_a_page_to_the_sign_in(api: ApiServer) -> None:
    answer = api.http.get("/")
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/signin")


ROUTES = [
    ("POST", "/v1/jobs", "submit"),
    ("POST", "/v1/jobs/bulk", "submit"),
    ("POST", "/v1/jobs/{id}/cancel", "submit"),
    ("POST", "/v1/jobs/{id}/retry", "submit"),
    ("POST", "/v1/jobs/{id}/fork", "submit"),
    ("POST", "/v1/jobs/{id}/advance", "submit"),
    ("POST", "/v1/jobs/advance", "submit"),
    ("DELETE", "/v1/jobs/{id}", "submit"),
    ("GET", "/v1/jobs", "read"),
    ("GET", "/v1/jobs/{id}", "read"),
    ("GET", "/v1/jobs/{id}/events", "read"),
    ("GET", "/v1/jobs/{id}/artifacts/a", "read"),
    ("GET", "/v1/pipelines", "read"),
    ("POST", "/v1/pipelines/echo/stages/first/pause", "admin"),
    ("POST", "/v1/pipelines/echo/stages/first/resume", "admin"),
    ("POST", "/v1/workers/w/drain", "admin"),
    ("POST", "/v1/workers/w/resume", "admin"),
    ("GET", "/v1/estimates", "admin"),
    ("GET", "/v1/status", "read"),
    ("POST", "/v1/session", "read"),
]


def test_a_key_does_what_its_scopes_say(api: ApiServer, keys: ApiKeys) -> None:
    by_scope = {scope: keys.create("acme", [scope]) for scope in ("submit", "read", "files", "webhooks", "admin")}
    for method, path, needed in ROUTES:
        url = path.format(id=new_job_id())
        assert api.http.request(method, url).status_code == 401, path
        for scope, key in by_scope.items():
            answer = api.http.request(method, url, headers=bearer(key))
            if scope in (needed, "admin"):
                assert answer.status_code not in (401, 403), (path, scope)
            else:
                assert answer.status_code == 403, (path, scope)
                error = answer.json()["error"]
                assert (error["code"], needed in error["message"]) == ("missing_scope", True)


def test_the_client_sends_the_key_of_the_environment(
    api: ApiServer, keys: ApiKeys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://{api.host}:{api.port}"
    with Client(url) as client, pytest.raises(Unauthenticated):
        client.submit(ECHO)
    reader, writer = keys.create("acme", ["read"]), keys.create("acme", ["submit", "read"])
    with Client(url, api_key=reader.key) as client, pytest.raises(MissingScope, match="submit"):
        client.submit(ECHO)
    (tmp_path / "key").write_text(writer.key + "\n")
    monkeypatch.setenv("OMNI_JOBS_API_KEY_FILE", str(tmp_path / "key"))
    with Client(url) as client:
        assert client.get(client.submit(ECHO).id).tenant == "acme"
    monkeypatch.delenv("OMNI_JOBS_API_KEY_FILE")
    monkeypatch.setenv("OMNI_JOBS_API_KEY", reader.key)
    with Client(url) as client:
        assert len(client.list().jobs) == 1


def test_a_database_that_is_away_is_503(settings: Settings, keys: ApiKeys, tmp_path: Path) -> None:
    key = keys.create("acme", ["read"])
    away = settings.model_copy(update={"database_url": "postgresql://nobody@127.0.0.1:1/none"})
    with serve(away) as api:
        api.services.db._retry_for_s = 0.0
        answer = api.http.get("/v1/jobs", headers=bearer(key))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_unavailable")
        assert api.http.get("/v1/jobs", headers={"Authorization": "Bearer x"}).status_code == 401


def test_every_replica_refuses_a_revoked_key_soon(settings: Settings, keys: ApiKeys) -> None:
    key = keys.create("acme", ["read"])
    with serve(settings) as first, serve(settings) as second:
        for api in (first, second):
            assert api.http.get("/v1/jobs", headers=bearer(key)).status_code == 200
        command = [sys.executable, "-m", "omni_jobs.cli", "keys", "revoke", key.id]
        subprocess.run(command, check=True, env=settings.to_environment())
        began = time.monotonic()
        for api in (first, second):
            while api.http.get("/v1/jobs", headers=bearer(key)).status_code != 401:
                assert time.monotonic() - began < SEEN_WITHIN_S


# What a tenant sees of another


def visible(answer: httpx2.Response, job_id: str) -> tuple[int, str, dict[str, str]]:
    """An answer's status, body and headers, but for the ids of job and request, and the time."""
    headers = {name: value for name, value in answer.headers.items() if name not in ("date", "x-request-id")}
    return answer.status_code, answer.text.replace(job_id, "JOB"), headers


def test_an_id_of_another_tenant_answers_as_one_that_never_was(api: ApiServer, keys: ApiKeys) -> None:
    ours, theirs = keys.create("acme", ["admin"]), keys.create("globex", ["admin"])
    ended, deleted = (submitted(api, theirs) for _ in range(2))
    for job_id in (ended, deleted):
        completed(api, job_id)
    waiting = submitted(api, theirs)
    assert api.http.delete(f"/v1/jobs/{deleted}", headers=bearer(theirs)).status_code == 204
    requests = [
        ("GET", "/v1/jobs/{id}"),
        ("GET", "/v1/jobs/{id}?wait=30"),
        ("GET", "/v1/jobs/{id}/events"),
        ("GET", "/v1/jobs/{id}/artifacts/audio.wav"),
        ("GET", "/v1/jobs/{id}/artifacts/a b"),
        ("POST", "/v1/jobs/{id}/cancel"),
        ("POST", "/v1/jobs/{id}/retry"),
        ("POST", "/v1/jobs/{id}/retry?from_stage=first"),
        ("POST", "/v1/jobs/{id}/fork"),
        ("DELETE", "/v1/jobs/{id}"),
    ]
    for method, path in requests:
        never = new_job_id()
        body = {"from_stage": "second"} if path.endswith("/fork") else None
        expected = visible(api.http.request(method, path.format(id=never), headers=bearer(ours), json=body), never)
        assert expected[0] == 404
        for job_id in (waiting, ended, deleted):
            answer = api.http.request(method, path.format(id=job_id), headers=bearer(ours), json=body)
            assert visible(answer, job_id) == expected, path
    mine = api.http.get(f"/v1/jobs/{ended}/artifacts/audio.wav", headers=bearer(theirs))
    assert (mine.status_code, mine.content) == (200, b"RIFF")
    assert api.http.get(f"/v1/jobs/{waiting}", headers=bearer(theirs)).json()["status"] == "queued"


def test_lists_cursors_and_the_status_speak_of_ones_own_jobs(api: ApiServer, keys: ApiKeys) -> None:
    ours, theirs = keys.create("acme", ["read", "submit"]), keys.create("globex", ["admin"])
    foreign = [submitted(api, theirs)]
    completed(api, foreign[0])  # while nothing else can be claimed
    own = [submitted(api, ours) for _ in range(3)]
    foreign += [submitted(api, theirs) for _ in range(3)]
    mine: dict[str, Any]
    for query in ("", "&pipeline=echo", "&status=queued", "&status=queued&pipeline=echo"):
        for cursor in ("", f"&cursor={foreign[-1]}", f"&cursor=job-{'f' * 32}"):
            mine = api.http.get(f"/v1/jobs?limit=3{query}{cursor}", headers=bearer(ours)).json()
            assert [job["id"] for job in mine["jobs"]] == own[::-1], (query, cursor)
            assert mine["next_cursor"] is None
    assert api.http.get(f"/v1/jobs?cursor={own[0]}", headers=bearer(ours)).json()["jobs"] == []
    status = api.http.get("/v1/status", headers=bearer(ours)).json()
    assert [job["id"] for job in status["recent"]] == own[::-1]
    assert status["jobs"] == {"queued": 3, "in_progress": 0, "cancelling": 0}
    assert sum(stage["queued"] for stage in status["stages"]) == 3
    assert status["workers"] == []
    operator = api.http.get("/v1/status", headers=bearer(theirs)).json()
    assert operator["jobs"]["queued"] == 6
    assert len(operator["recent"]) == 4
    assert operator["workers"] != []


def test_an_idempotency_key_belongs_to_its_tenant(api: ApiServer, keys: ApiKeys) -> None:
    ours, theirs = keys.create("acme", ["submit", "read"]), keys.create("globex", ["submit", "read"])
    named = {"Idempotency-Key": "night-run"}
    assert submitted(api, ours, **named) != submitted(api, theirs, **named)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "/events"),
        ("GET", "/artifacts/text.txt"),
        ("POST", "/cancel"),
        ("POST", "/retry"),
        ("DELETE", ""),
    ],
)
def test_no_time_tells_a_foreign_id_from_one_that_never_was(
    api: ApiServer, keys: ApiKeys, method: str, path: str
) -> None:
    """Both are asked for in turn: the medians differ by less than each distribution's own middle half is wide."""
    ours, theirs = keys.create("acme", ["admin"]), keys.create("globex", ["admin"])
    foreign = submitted(api, theirs)
    took: dict[str, list[float]] = {"foreign": [], "never": []}

    def ask(kind: str, job_id: str) -> None:
        began = time.perf_counter()
        assert api.http.request(method, f"/v1/jobs/{job_id}{path}", headers=bearer(ours)).status_code == 404
        took[kind].append(time.perf_counter() - began)

    for number in range(150):
        pair = [("foreign", foreign), ("never", new_job_id())]
        for kind, job_id in pair if number % 2 else pair[::-1]:
            ask(kind, job_id)
    medians = {kind: statistics.median(times) for kind, times in took.items()}
    low, _, high = statistics.quantiles(took["never"], n=4)
    assert abs(medians["foreign"] - medians["never"]) <= max(high - low, 0.2 * medians["never"]), medians


def test_high_priority_takes_the_scope(api: ApiServer, keys: ApiKeys) -> None:
    plain, permitted = keys.create("acme", ["submit"]), keys.create("acme", ["submit", "priority"])
    high = {**ECHO, "priority": "high"}
    refused = api.http.post("/v1/jobs", json=high, headers=bearer(plain))
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "missing_scope")
    assert refused.json()["error"]["field"] == "priority"
    assert api.http.post("/v1/jobs", json={**ECHO, "priority": "low"}, headers=bearer(plain)).status_code == 202
    taken = api.http.post("/v1/jobs", json=high, headers=bearer(permitted))
    assert (taken.status_code, taken.json()["priority"]) == (202, "high")
    job = f"/v1/jobs/{taken.json()['id']}"
    assert api.http.post(f"{job}/cancel", headers=bearer(plain)).status_code in (200, 202)
    again = api.http.post(f"{job}/retry", headers=bearer(plain))
    assert (again.status_code, again.json()["error"]["code"]) == (403, "missing_scope")
    assert again.json()["error"]["field"] == "priority"
    assert api.http.post(f"{job}/retry", headers=bearer(permitted)).status_code in (200, 202)


def test_a_bulk_ends_once_its_key_is_revoked(api: ApiServer, keys: ApiKeys) -> None:
    key = keys.create("acme", ["submit", "read"])
    line = json.dumps(ECHO).encode() + b"\n"

    def lines() -> Iterator[bytes]:
        yield line * 300
        until(lambda: len(api.services.jobs.list().jobs) > 0)
        keys.revoke(key.id)
        until(lambda: api.http.get("/v1/status", headers=bearer(key)).status_code == 401)
        yield line * 300

    headers = {**bearer(key), "Content-Type": "application/jsonl"}
    answer = api.http.post("/v1/jobs/bulk", content=lines(), headers=headers)
    *answers, last = [json.loads(each) for each in answer.text.splitlines()]
    assert last["error"]["code"] == "unauthenticated"
    assert (last["lines"], last["accepted"]) == (len(answers), len(answers))
    assert 0 < len(answers) <= 300
    assert f"no line after line {len(answers)} was submitted" in last["error"]["message"]
    assert api.http.post("/v1/jobs/bulk", content=line, headers=headers).status_code == 401


def test_the_limits_of_a_bulk_are_those_of_the_moment(api: ApiServer, keys: ApiKeys, database: Database) -> None:
    key, tenants = keys.create("acme", ["submit", "read"]), Tenants(database)

    def lines() -> Iterator[bytes]:
        line = json.dumps(ECHO).encode() + b"\n"
        yield line * 300
        until(lambda: len(api.services.jobs.list().jobs) > 0)
        tenants.set("acme", limits={"queued_jobs": 0})
        until(lambda: api.http.post("/v1/jobs", json=ECHO, headers=bearer(key)).status_code == 429)
        yield line * 300

    headers = {**bearer(key), "Content-Type": "application/jsonl"}
    *answers, last = map(json.loads, api.http.post("/v1/jobs/bulk", content=lines(), headers=headers).text.splitlines())
    assert last["lines"] == 600
    assert {each["error"]["code"] for each in answers[300:]} == {"too_many_jobs"}


def test_a_deleted_tenants_key_makes_no_job_however_fresh_it_is(
    api: ApiServer, keys: ApiKeys, database: Database
) -> None:
    """Within the seconds for which the server has looked the key up."""
    key = keys.create("acme", ["submit", "read"])
    ended = submitted(api, key)
    assert api.http.post(f"/v1/jobs/{ended}/cancel", headers=bearer(key)).status_code == 200
    asked = time.monotonic()
    assert api.http.get("/v1/status", headers=bearer(key)).status_code == 200
    Tenants(database).delete("acme")
    bulk = {**bearer(key), "Content-Type": "application/jsonl"}
    line = json.loads(api.http.post("/v1/jobs/bulk", content=json.dumps(ECHO), headers=bulk).text.splitlines()[0])
    found = [
        api.http.post("/v1/jobs", json=ECHO, headers=bearer(key)),
        api.http.post(f"/v1/jobs/{ended}/retry", headers=bearer(key)),
        api.http.post(f"/v1/jobs/{ended}/fork", json={"from_stage": "first"}, headers=bearer(key)),
    ]
    assert [answer.status_code for answer in found] == [401, 401, 401]
    if time.monotonic() - asked < KEPT_S:  # else the key itself was refused
        assert line["error"]["code"] == "unauthenticated"
    assert [job.status.is_final for job in api.services.jobs.list().jobs] == [True]
    other = keys.create("globex", ["submit"])
    assert api.http.post("/v1/jobs", json=ECHO, headers=bearer(other)).status_code == 202


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)
