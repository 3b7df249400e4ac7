import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Collection, Sequence

import pytest
import pytest_asyncio

from omni_jobs.api.job_waits import JobWaits
from omni_jobs.errors import DatabaseUnavailable

LONG_S = 60.0  # a wait that is not let go lasts longer than the tests may


class Jobs:
    """The jobs that have ended, and the polls for them."""

    def __init__(self) -> None:
        self.ended: set[str] = set()
        self.away = self.broken = False
        self.polls: list[list[str]] = []
        self.polled = threading.Event()

    def unfinished(self, job_ids: Sequence[str]) -> Collection[str]:
        self.polls.append(list(job_ids))
        self.polled.set()
        if self.broken:
            raise RuntimeError("a bug")
        if self.away:
            raise DatabaseUnavailable("away")
        return set(job_ids) - self.ended

    async def poll(self) -> None:
        """Return after a poll that began after this call."""
        for _ in range(2):  # the first may have begun before
            self.polled.clear()
            await asyncio.to_thread(self.polled.wait, LONG_S)


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest_asyncio.fixture
async def waits(jobs: Jobs) -> AsyncIterator[JobWaits]:
    waits = JobWaits(jobs.unfinished)
    yield waits
    waits.release()


async def test_each_wait_ends_with_its_own_job(jobs: Jobs, waits: JobWaits) -> None:
    first, again, second = (
        asyncio.create_task(waits.until_ended(job_id, LONG_S)) for job_id in ("job-1", "job-1", "job-2")
    )
    await jobs.poll()
    assert not any(wait.done() for wait in (first, again, second))
    jobs.ended.add("job-1")
    await asyncio.wait_for(asyncio.gather(first, again), 30)
    await jobs.poll()
    assert not second.done()
    jobs.ended.add("job-2")
    await asyncio.wait_for(second, 30)


async def test_all_are_served_by_one_poll(jobs: Jobs, waits: JobWaits) -> None:
    requests = [asyncio.create_task(waits.until_ended(f"job-{n % 10}", LONG_S)) for n in range(100)]
    await jobs.poll()
    assert jobs.polls[-1] == [f"job-{n}" for n in range(10)]
    jobs.ended |= {f"job-{n}" for n in range(10)}
    await asyncio.wait_for(asyncio.gather(*requests), 30)


async def test_the_time_is_up(waits: JobWaits) -> None:
    await asyncio.wait_for(waits.until_ended("job-1", 0.01), 30)


async def test_a_job_is_polled_no_more_once_its_request_has_left(jobs: Jobs, waits: JobWaits) -> None:
    left = asyncio.create_task(waits.until_ended("job-1", LONG_S))
    await jobs.poll()
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    stays = asyncio.create_task(waits.until_ended("job-2", LONG_S))
    await jobs.poll()
    assert jobs.polls[-1] == ["job-2"]
    jobs.ended.add("job-2")
    await asyncio.wait_for(stays, 30)


async def test_while_the_database_is_away_no_request_waits(jobs: Jobs, waits: JobWaits) -> None:
    jobs.away = True
    await asyncio.wait_for(waits.until_ended("job-1", LONG_S), 30)
    jobs.away = False
    jobs.ended.add("job-1")
    await asyncio.wait_for(waits.until_ended("job-1", LONG_S), 30)


async def test_a_poll_that_took_long_is_followed_by_another_soon(jobs: Jobs) -> None:
    times = itertools.count(step=1000)  # seconds: each poll begins and ends so far apart
    waits = JobWaits(jobs.unfinished, clock=lambda: float(next(times)))
    wait = asyncio.create_task(waits.until_ended("job-1", LONG_S))
    await asyncio.wait_for(jobs.poll(), 30)
    jobs.ended.add("job-1")
    await asyncio.wait_for(wait, 30)
    waits.release()


async def test_a_release_lets_all_go_and_nobody_waits_again(jobs: Jobs, waits: JobWaits) -> None:
    requests = [asyncio.create_task(waits.until_ended(f"job-{n}", LONG_S)) for n in range(3)]
    await jobs.poll()
    waits.release()
    await asyncio.wait_for(asyncio.gather(*requests), 30)
    await asyncio.wait_for(waits.until_ended("job-4", LONG_S), 30)


async def test_a_bug_in_a_poll_ends_neither_the_polls_nor_a_wait(jobs: Jobs, waits: JobWaits) -> None:
    jobs.broken = True
    await asyncio.wait_for(waits.until_ended("job-1", LONG_S), 30)
    jobs.broken = False
    jobs.ended.add("job-2")
    await asyncio.wait_for(waits.until_ended("job-2", LONG_S), 30)


async def test_waits_are_bounded_in_all_and_for_each_tenant(jobs: Jobs) -> None:
    waits = JobWaits(jobs.unfinished, most=3, most_per_tenant=2)
    going = [asyncio.create_task(waits.until_ended("job-1", LONG_S, "a")) for _ in range(2)]
    await asyncio.sleep(0)
    assert not await asyncio.wait_for(waits.until_ended("job-1", LONG_S, "a"), 30)
    going.append(asyncio.create_task(waits.until_ended("job-1", LONG_S, "b")))
    await asyncio.sleep(0)
    assert not await asyncio.wait_for(waits.until_ended("job-1", LONG_S, "c"), 30)
    assert not await asyncio.wait_for(waits.until_ended("job-1", LONG_S), 30)
    going[0].cancel()
    await asyncio.wait(going[:1])
    going[0] = asyncio.create_task(waits.until_ended("job-1", LONG_S, "a"))  # its place is free again
    await asyncio.sleep(0)
    assert not going[0].done()
    jobs.ended.add("job-1")
    assert await asyncio.wait_for(asyncio.gather(*going), 30) == [True] * 3
    assert not waits._of_tenants
