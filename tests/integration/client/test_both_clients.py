"""Both clients against a real API server: a job's whole life, bulks, streamed downloads, broken connections."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from omni_jobs.client import AsyncClient, Client
from omni_jobs.errors import Conflict, InvalidRequest, NotFound
from omni_jobs.settings import Settings
from omni_jobs.states import JobState
from omni_jobs.views import JobView
from tests.both_clients import KINDS, Kind, of_kind
from tests.integration.api_server import ApiServer
from tests.integration.served_jobs import completed
from tests.services.fault_proxy import Fault, FaultProxy

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
SOUND = b"RIFF" + bytes(range(256)) * 12_000  # some 3 MiB


@pytest.fixture(params=KINDS)
def which(request: pytest.FixtureRequest) -> Kind:
    return cast(Kind, request.param)


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings


def url_of(api: ApiServer) -> str:
    return f"http://{api.host}:{api.port}"


@pytest.fixture
def client(api: ApiServer, which: Kind) -> Iterator[Client]:
    with of_kind(which, url_of(api)) as client:
        yield client


def jobs_there(api: ApiServer) -> int:
    return sum(api.services.jobs.backlog().values())


def test_a_job_s_whole_life(api: ApiServer, client: Client, tmp_path: Path) -> None:
    job = client.submit(ECHO, idempotency_key="mine", cancel_after="15m")
    assert client.submit(ECHO, idempotency_key="mine").id == job.id
    seen = []
    for view in client.watch(job.id, timeout=60):
        seen.append(view.status)
        if view.status is JobState.QUEUED:
            completed(api, job.id, SOUND)
    assert (seen[0], seen[-1]) == (JobState.QUEUED, JobState.COMPLETED)
    told: list[JobView] = []
    job = client.wait(job.id, timeout=60, on_update=told.append)
    assert told == [job]
    assert [event.type for event in client.events(job.id)] == ["job.completed"]
    assert [each.id for each in client.list(status="completed", limit=1).jobs] == [job.id]
    assert client.artifact(job.id, "audio.wav") == SOUND
    chunks = list(client.artifact_chunks(job.id, "audio.wav"))
    assert b"".join(chunks) == SOUND
    assert [len(chunk) for chunk in chunks[:-1]] == [1 << 20] * (len(chunks) - 1)
    assert client.save_artifact(job, "audio.wav", tmp_path / "sound.wav") == len(SOUND)
    files = client.save(job, tmp_path / "out")
    assert [path.name for path in files] == ["result.json", "text.txt", "audio.wav"]
    assert files[-1].read_bytes() == (tmp_path / "sound.wav").read_bytes() == SOUND
    fork = client.fork(job.id, "first", {"seed": 5}, idempotency_key="fork", cancel_after=60)
    assert (fork.forked_from, fork.seed, fork.expires_at is None) == (job.id, 5, False)
    assert client.fork(job.id, "first", {"seed": 5}, idempotency_key="fork", cancel_after=60).id == fork.id
    assert client.retry(job.id, from_stage="first").retries == 1
    with pytest.raises(Conflict):
        client.delete(job.id)
    assert client.cancel(job.id).status is JobState.CANCELLED
    client.delete(job.id)
    with pytest.raises(NotFound):
        client.get(job.id)


def test_jobs_are_found_and_changed_by_a_filter(api: ApiServer, client: Client) -> None:
    at = datetime.now(UTC) - timedelta(hours=1)
    ids = [client.submit({**ECHO, "metadata": {"project": "sea & land", "=": "a=b"}}).id for _ in range(3)]
    other = client.submit(ECHO).id
    found = client.list(metadata={"project": "sea & land"}, stage="first", created_after=at, brief=True)
    assert [job.id for job in found.jobs] == ids[::-1]
    assert client.list(created_before=at).jobs == []
    wanted: dict[str, Any] = {"metadata": {"project": "sea & land", "=": "a=b"}, "created_after": at}
    assert client.cancel_all(wanted, dry_run=True).matched == 3
    first = client.cancel_all(wanted, limit=2)
    assert (first.changed, first.next_cursor) == (2, ids[1])
    assert client.cancel_all(wanted, cursor=first.next_cursor).changed == 1
    assert client.retry_all({"status": "cancelled"}, limit=1).changed == 1
    assert client.get(ids[2]).retries == 1
    assert client.delete_all({"status": "cancelled"}).changed == 2
    assert {job.id for job in client.list().jobs} == {ids[2], other}
    for call in (client.cancel_all, client.delete_all, client.retry_all, client.advance_all):
        with pytest.raises(InvalidRequest, match="at least one"):
            call({})
    with pytest.raises(InvalidRequest, match="zone"):
        client.list(created_after=datetime(2026, 1, 5))


def test_a_submit_may_wait_for_the_end(api: ApiServer, which: Kind) -> None:
    with of_kind(which, url_of(api), timeout=1.5) as client:
        assert client.submit(ECHO, within_s=2).status is JobState.QUEUED
        assert jobs_there(api) == 1


def test_the_pipelines_and_their_stages(client: Client) -> None:
    assert "echo" in {pipeline.name for pipeline in client.pipelines()}
    assert client.set_paused("echo", "first", True).paused_at is not None
    assert client.set_paused("echo", "first", False).paused_at is None
    for is_drained in (True, False):
        with pytest.raises(NotFound):
            client.set_drained("nobody@nowhere", is_drained)
    assert client.calibrations() == []
    status = client.status()
    assert ("echo", "first") in {(load.pipeline, load.stage) for load in status.stages}
    assert (status.workers, status.recent) == ([], [])
    assert client.scaling("echo", "first", wait_s=5).wanted == 0
    with pytest.raises(NotFound):
        client.scaling("echo", "third")


def test_a_server_may_hold_an_answer_for_longer_than_the_client_waits_for_others(api: ApiServer, which: Kind) -> None:
    with of_kind(which, url_of(api), timeout=1.5) as client:
        job = client.submit(ECHO)
        assert client.get(job.id, within_s=2).status is JobState.QUEUED


def test_a_submit_whose_connection_breaks_is_one_job(api: ApiServer, which: Kind) -> None:
    """The job is made, and the answer is lost; the client sends the submit again with the same key."""
    with FaultProxy(url_of(api), http=True) as proxy, of_kind(which, proxy.url) as client:
        proxy.set(Fault(cut_when_sent=b"the last word", times=1))
        job = client.submit({**ECHO, "messages": [{"role": "user", "content": "the last word"}]})
        assert proxy.struck == 1
        proxy.set(Fault(cut_when_sent=b"another word", times=1, reset=True))
        body = {**ECHO, "messages": [{"role": "user", "content": "another word"}]}
        other = client.submit(body, idempotency_key="mine")
        assert proxy.struck == 1
        assert client.submit(body, idempotency_key="mine").id == other.id
    assert jobs_there(api) == 2
    assert {each["id"] for each in api.http.get("/v1/jobs").json()["jobs"]} == {job.id, other.id}


def test_a_bulk_whose_connection_breaks_makes_each_job_once(api: ApiServer, which: Kind) -> None:
    lines = [json.dumps({**ECHO, "seed": seed}).encode() for seed in range(600)]
    with FaultProxy(url_of(api), http=True) as proxy, of_kind(which, proxy.url) as client:
        proxy.set(Fault(cut_answer_after=20_000, times=1))
        answers = list(client.submit_bulk(lines))
        assert proxy.struck == 1
    assert [answer.line for answer in answers] == list(range(1, 601))
    assert len({answer.id for answer in answers}) == jobs_there(api) == 600


def test_a_bulk_of_an_iterator_is_sent_once(client: Client) -> None:
    lines = [json.dumps(ECHO).encode() + b"\r\n", b"\n", b"{}", ECHO, json.dumps(ECHO)]
    answers = list(client.submit_bulk(iter(lines)))
    assert [(answer.line, answer.created, answer.error is None) for answer in answers] == [
        (1, True, True),
        (3, False, False),
        (4, True, True),
        (5, True, True),
    ]


# What AsyncClient alone can do


async def until(holds: Any) -> None:
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0.02)


async def test_lines_that_come_one_by_one_are_sent_as_they_come(api: ApiServer) -> None:
    """The first group is stored before the last line is there."""

    async def lines() -> AsyncIterator[bytes]:
        for seed in range(300):
            yield json.dumps({**ECHO, "seed": seed}).encode()
        await until(lambda: jobs_there(api))
        yield b"{}"

    async with AsyncClient(url_of(api)) as client:
        answers = [answer async for answer in client.submit_bulk(lines())]
    assert [answer.error is None for answer in answers] == [True] * 300 + [False]
    assert jobs_there(api) == 300


async def test_many_jobs_are_waited_for_on_one_loop(api: ApiServer) -> None:
    told: list[str] = []

    async def tell(job: JobView) -> None:
        await asyncio.sleep(0)
        told.append(job.id)

    async with AsyncClient(url_of(api)) as client:
        jobs = await asyncio.gather(*(client.submit({**ECHO, "seed": seed}) for seed in range(12)))
        waits = [asyncio.create_task(client.wait(job.id, timeout=60, on_update=tell)) for job in jobs]
        await until(lambda: set(told) == {job.id for job in jobs})
        for job in jobs:
            await asyncio.to_thread(completed, api, job.id)
        ended = await asyncio.gather(*waits)
    assert [(job.id, job.status) for job in ended] == [(job.id, JobState.COMPLETED) for job in jobs]


async def test_a_download_that_is_cancelled_leaves_nothing(api: ApiServer, tmp_path: Path) -> None:
    async with AsyncClient(url_of(api)) as direct:
        job = await direct.submit(ECHO)
        await asyncio.to_thread(completed, api, job.id, SOUND)
        job = await direct.get(job.id)
    with FaultProxy(url_of(api), http=True) as proxy:
        proxy.set(Fault(answer_bytes_per_s=1_000_000))
        async with AsyncClient(proxy.url) as client:
            task = asyncio.create_task(client.save_artifact(job, "audio.wav", tmp_path / "sound.wav"))
            await until(lambda: any(tmp_path.glob(".sound.wav.*")))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert list(tmp_path.glob("*sound.wav*")) == []
            await until(lambda: proxy.connections == 0)
            proxy.clear()
            assert await client.save_artifact(job, "audio.wav", tmp_path / "sound.wav") == len(SOUND)


async def test_an_iteration_that_is_left_lets_its_connection_go(api: ApiServer) -> None:
    async with AsyncClient(url_of(api)) as client:
        job = await client.submit(ECHO)
        await asyncio.to_thread(completed, api, job.id, SOUND)
        chunks = client.artifact_chunks(job.id, "audio.wav")
        assert (await anext(chunks))[:4] == b"RIFF"
        await chunks.aclose()  # type: ignore[attr-defined]
        await until(lambda: len(api.connections) <= 1)
        assert await client.artifact(job.id, "audio.wav") == SOUND
