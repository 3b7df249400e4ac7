"""A tenant's limits over HTTP, on both databases: each with its own 429, and of nobody else's jobs."""

import io
import json
import re
import time
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.jobs import Jobs
from omni_jobs.settings import Settings
from omni_jobs.tenants.key_store import ApiKeys
from omni_jobs.tenants.tenant_store import Tenants
from tests.integration.api_server import ApiServer, serve
from tests.oracles import samples

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"auth": "keys", "broker_key_prefix": f"{settings.data_dir.name}-"})


@pytest.fixture
def api(settings: Settings, database: Database) -> Iterator[ApiServer]:
    with serve(settings) as server:
        yield server


def tenant(database: Database, name: str, **limits: int) -> dict[str, str]:
    """Make a tenant, and return the header with a key of it."""
    Tenants(database).create(name, 1.0, limits)
    return {"Authorization": f"Bearer {ApiKeys(database).create(name, ['admin']).key}"}


def refusal(answer: httpx2.Response) -> tuple[str, str]:
    """Return a 429's code and message. It says when to try again."""
    assert answer.status_code == 429, answer.text
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    error: dict[str, Any] = answer.json()["error"]
    assert error["retryable"]
    return error["code"], error["message"]


def test_queued_jobs(api: ApiServer, database: Database) -> None:
    few, many = tenant(database, "few", queued_jobs=2), tenant(database, "many")
    for _ in range(5):
        assert api.http.post("/v1/jobs", json=ECHO, headers=many).status_code == 202
    for _ in range(2):
        assert api.http.post("/v1/jobs", json=ECHO, headers=few).status_code == 202
    expected = ("too_many_jobs", "tenant few in pipeline echo has 2 jobs waiting; 2 may wait")
    assert refusal(api.http.post("/v1/jobs", json=ECHO, headers=few)) == expected
    assert api.http.post("/v1/jobs", json=ECHO, headers=many).status_code == 202


def test_a_limit_of_its_own_may_be_above_that_of_the_settings(settings: Settings, database: Database) -> None:
    some = tenant(database, "some", queued_jobs=3)
    with serve(settings.model_copy(update={"max_queued_jobs_per_tenant": 1})) as api:
        answers = [api.http.post("/v1/jobs", json=ECHO, headers=some).status_code for _ in range(4)]
    assert answers == [202, 202, 202, 429]


def test_running_jobs(api: ApiServer, database: Database) -> None:
    few, many = tenant(database, "few", running_jobs=1), tenant(database, "many")
    job = api.http.post("/v1/jobs", json=ECHO, headers=few).json()["id"]
    api.http.post("/v1/jobs", json=ECHO, headers=many)
    with database.begin() as tx:
        tx.execute(text("UPDATE jobs SET state = 'in_progress' WHERE id = :id"), {"id": job})
    api.services.intake.backlog._count_at = float("-inf")  # a count is due
    api.http.post("/v1/jobs", json=ECHO, headers=many)
    api.wait_for_count()
    answer = api.http.post("/v1/jobs", json=ECHO, headers=few)
    assert refusal(answer) == ("too_many_running_jobs", "tenant few has 1 jobs in progress; 1 may be")
    bulk = {**few, "Content-Type": "application/jsonl"}
    line = json.loads(api.http.post("/v1/jobs/bulk", content=json.dumps(ECHO), headers=bulk).text.splitlines()[0])
    assert line["error"]["code"] == "too_many_running_jobs"
    assert api.http.post("/v1/jobs", json=ECHO, headers=many).status_code == 202


def test_running_jobs_hold_a_burst(api: ApiServer, database: Database) -> None:
    few = tenant(database, "few", running_jobs=1)
    first, second = (api.http.post("/v1/jobs", json=ECHO, headers=few).json() for _ in range(2))
    assert first["waiting"]["reason"] == "no_worker"
    assert second["waiting"]["reason"] == "quota"
    assert [stage["status"] for stage in second["stages"]] == ["pending"] * len(second["stages"])
    bulk = {**few, "Content-Type": "application/jsonl"}
    line = json.loads(api.http.post("/v1/jobs/bulk", content=json.dumps(ECHO), headers=bulk).text.splitlines()[0])
    reasons = {job["id"]: job["waiting"]["reason"] for job in api.http.get("/v1/jobs", headers=few).json()["jobs"]}
    assert reasons == {first["id"]: "no_worker", second["id"]: "quota", line["id"]: "quota"}
    assert api.http.post(f"/v1/jobs/{first['id']}/cancel", headers=few).json()["status"] == "cancelled"
    assert api.http.get(f"/v1/jobs/{second['id']}", headers=few).json()["waiting"]["reason"] == "no_worker"


def test_requests_a_minute_over_all_replicas(settings: Settings, database: Database) -> None:
    few, many = tenant(database, "few", requests_per_minute=6), tenant(database, "many")
    with serve(settings) as first, serve(settings) as second:
        answers = [api.http.get("/v1/jobs", headers=few) for _ in range(4) for api in (first, second)]
        assert sorted(answer.status_code for answer in answers) == [200] * 6 + [429] * 2
        assert refusal(answers[-1]) == ("too_many_requests", "tenant few may send 6 requests a minute")
        assert first.http.get("/v1/jobs", headers=many).status_code == 200


def test_requests_a_minute_while_the_broker_is_away(settings: Settings, database: Database) -> None:
    few = tenant(database, "few", requests_per_minute=3)
    away = settings.model_copy(update={"broker_url": Settings(broker_url="redis://127.0.0.1:1/0").broker_url})  # type: ignore[arg-type]
    with serve(away) as api:
        answers = [api.http.get("/v1/jobs", headers=few).status_code for _ in range(5)]
    assert answers == [200, 200, 200, 429, 429]


def sound(seconds: float) -> dict[str, Any]:
    """A message with so much silence, at 32,000 bytes a second."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(16_000)
        writer.writeframes(bytes(int(seconds * 32_000)))
    return {"model": "qwen2_5_omni", "messages": [{"role": "user", "content": [samples.audio_part(file.getvalue())]}]}


def test_bytes_of_media(settings: Settings, database: Database, tiny_checkpoint: Path) -> None:
    few, many = tenant(database, "few", media_bytes=50_000), tenant(database, "many")
    with serve(settings.model_copy(update={"models": {"qwen2_5_omni": tiny_checkpoint}})) as api:
        first = api.http.post("/v1/jobs", json=sound(1.0), headers={**few, "Idempotency-Key": "first"})
        assert first.status_code == 202
        code, message = refusal(api.http.post("/v1/jobs", json=sound(1.0), headers=few))
        assert code == "too_much_media"
        assert message.startswith("unfinished jobs of tenant few have 32044 bytes of media, and may have 50000")
        again = api.http.post("/v1/jobs", json=sound(1.0), headers={**few, "Idempotency-Key": "first"})
        assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
        assert api.http.post("/v1/jobs", json=sound(0.5), headers=few).status_code == 202
        assert api.http.post("/v1/jobs", json=sound(1.0), headers=many).status_code == 202
        saysalone = {"model": "qwen2_5_omni", "messages": ECHO["messages"]}
        assert api.http.post("/v1/jobs", json=saysalone, headers=few).status_code == 202
        api.http.post(f"/v1/jobs/{first.json()['id']}/cancel", headers=few)
        assert api.http.post("/v1/jobs", json=sound(1.0), headers=few).status_code == 202


def of_bulk(api: ApiServer, key: dict[str, str], *bodies: dict[str, Any], name: str = "b") -> list[str]:
    """What becomes of each line: created, known, or the code of its error."""
    headers = {**key, "Content-Type": "application/jsonl", "Idempotency-Key": name}
    content = "\n".join(map(json.dumps, bodies))
    *lines, _ = map(json.loads, api.http.post("/v1/jobs/bulk", content=content, headers=headers).text.splitlines())
    return [each["error"]["code"] if "error" in each else "created" if each["created"] else "known" for each in lines]


def test_a_bulk_that_is_sent_again_makes_exactly_the_rest(
    api: ApiServer, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that are there take no room; one query finds them, however many lines are refused."""
    few = tenant(database, "few", queued_jobs=10)
    assert of_bulk(api, few, *[ECHO] * 8) == ["created"] * 8
    asked: list[int] = []
    known_keys = Jobs.known_keys

    def counted(jobs: Jobs, keys: set[tuple[str, str]]) -> set[tuple[str, str]]:
        asked.append(len(keys))
        return known_keys(jobs, keys)

    monkeypatch.setattr(Jobs, "known_keys", counted)
    assert of_bulk(api, few, *[ECHO] * 12) == ["known"] * 8 + ["created"] * 2 + ["too_many_jobs"] * 2
    assert asked == [12]
    assert of_bulk(api, few, *[ECHO] * 100) == ["known"] * 10 + ["too_many_jobs"] * 90
    assert asked == [12, 100]


def test_a_known_job_is_answered_after_its_deadline(api: ApiServer, database: Database) -> None:
    few = tenant(database, "few")
    body = {**ECHO, "expires_at": time.time() + 1.0}
    headers = {**few, "Idempotency-Key": "k"}
    first = api.http.post("/v1/jobs", json=body, headers=headers)
    assert first.status_code == 202
    while api.http.post("/v1/jobs", json=body, headers=few).status_code == 202:
        assert time.time() < body["expires_at"] + 30
    again = api.http.post("/v1/jobs", json=body, headers=headers)
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    assert api.http.post("/v1/jobs", json=body, headers={**few, "Idempotency-Key": "l"}).status_code == 422


def test_media_of_a_bulk_and_of_a_retry(settings: Settings, database: Database, tiny_checkpoint: Path) -> None:
    key = tenant(database, "few", media_bytes=3 * 32_044)
    with serve(settings.model_copy(update={"models": {"qwen2_5_omni": tiny_checkpoint}})) as api:
        clip, long = sound(1.0), sound(2.0)
        assert of_bulk(api, key, clip, clip) == ["created"] * 2
        # The long one has no room, and takes none from the one after it.
        assert of_bulk(api, key, clip, clip, long, clip, clip) == ["known"] * 2 + [
            "too_much_media", "created", "too_much_media",
        ]  # fmt: skip
        newest, *_ = jobs = [job["id"] for job in api.http.get("/v1/jobs", headers=key).json()["jobs"]]
        assert len(jobs) == 3
        api.http.post(f"/v1/jobs/{newest}/cancel", headers=key)
        assert of_bulk(api, key, clip, name="other") == ["created"]
        code, message = refusal(api.http.post(f"/v1/jobs/{newest}/retry", headers=key))
        assert (code, message.rpartition(": ")[2]) == ("too_much_media", "32044 more came")
        api.http.post(f"/v1/jobs/{jobs[1]}/cancel", headers=key)
        assert api.http.post(f"/v1/jobs/{newest}/retry", headers=key).status_code == 200
        refusal(api.http.post(f"/v1/jobs/{jobs[1]}/retry", headers=key))


def test_stored_bytes(api: ApiServer, database: Database) -> None:
    """Texts count, also of jobs that have ended, until they are deleted."""
    few, many = tenant(database, "few", stored_bytes=29_000), tenant(database, "many")
    body = {"model": "echo", "messages": [{"role": "user", "content": "x" * 10_000}]}
    jobs = []
    for _ in range(2):
        answer = api.http.post("/v1/jobs", json=body, headers=few)
        assert answer.status_code == 202
        jobs.append(answer.json()["id"])
        api.http.post(f"/v1/jobs/{jobs[-1]}/cancel", headers=few)
    code, message = refusal(api.http.post("/v1/jobs", json=body, headers=few))
    assert code == "too_much_stored"
    assert re.match(
        r"tenant few keeps 24\d\d\d bytes stored, and may keep 29000: 12\d\d\d more came; deleting", message
    )
    assert of_bulk(api, few, body, ECHO, body) == ["too_much_stored", "created", "too_much_stored"]
    assert api.http.post("/v1/jobs", json=body, headers=many).status_code == 202
    assert api.http.post(f"/v1/jobs/{jobs[0]}/retry", headers=few).status_code == 200  # it brings nothing
    Tenants(database).set("few", limits={"stored_bytes": 18_000})
    api.services.callers._keys._there.clear()  # as after some seconds
    assert refusal(api.http.post(f"/v1/jobs/{jobs[1]}/retry", headers=few))[0] == "too_much_stored"
    assert api.http.delete(f"/v1/jobs/{jobs[1]}", headers=few).status_code == 204
    assert of_bulk(api, few, ECHO, body, name="c") == ["created", "too_much_stored"]


def test_stored_bytes_of_many_small_jobs(api: ApiServer, database: Database) -> None:
    """Their rows count, also once they have ended."""
    few = tenant(database, "few", stored_bytes=10_000)
    made = []
    while (answer := api.http.post("/v1/jobs", json=ECHO, headers=few)).status_code == 202:
        made.append(answer.json()["id"])
        api.http.post(f"/v1/jobs/{made[-1]}/cancel", headers=few)
        assert len(made) < 10
    assert refusal(answer)[0] == "too_much_stored"
    assert len(made) == 4
    api.http.delete(f"/v1/jobs/{made[0]}", headers=few)
    assert api.http.post("/v1/jobs", json=ECHO, headers=few).status_code == 202


def test_stored_bytes_of_many_at_once(api: ApiServer, database: Database) -> None:
    few = tenant(database, "few", stored_bytes=54_000)
    body = {"model": "echo", "messages": [{"role": "user", "content": "x" * 10_000}]}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: api.http.post("/v1/jobs", json=body, headers=few).status_code, range(16)))
    assert answers.count(202) <= 4
    assert api.services.jobs.stored_bytes("few") <= 54_000
    assert api.http.post("/v1/jobs", json=body, headers=few).status_code == (429 if answers.count(202) == 4 else 202)
