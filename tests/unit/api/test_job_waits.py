from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Collection, Iterator, Sequence

import pytest

from omni_jobs.api.job_waits import Ends
from omni_jobs.errors import DatabaseUnavailable

LONG_S = 60.0  # a wait that is not let go lasts longer than the tests may


class Jobs:
    """Those that have ended, and how often somebody looked for which."""

    def __init__(self) -> None:
        self.ended: set[str] = set()
        self.away = self.broken = False
        self.looks: list[list[str]] = []
        self.looked = threading.Event()

    def unfinished(self, job_ids: Sequence[str]) -> Collection[str]:
        self.looks.append(list(job_ids))
        self.looked.set()
        if self.broken:
            raise RuntimeError("a bug")
        if self.away:
            raise DatabaseUnavailable("away")
        return set(job_ids) - self.ended

    async def look(self) -> None:
        """Returns after a look that began after this call."""
        for _ in range(2):  # the first may have begun before
            self.looked.clear()
            await asyncio.to_thread(self.looked.wait, LONG_S)


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture
def ends(jobs: Jobs) -> Iterator[Ends]:
    ends = Ends(jobs.unfinished)
    yield ends
    ends.close()


async def test_each_is_told_of_the_end_of_its_own_job(jobs: Jobs, ends: Ends) -> None:
    first, again, second = (asyncio.create_task(ends.of(job_id, LONG_S)) for job_id in ("job-1", "job-1", "job-2"))
    await jobs.look()
    assert not any(wait.done() for wait in (first, again, second))
    jobs.ended.add("job-1")
    await asyncio.wait_for(asyncio.gather(first, again), 30)
    await jobs.look()
    assert not second.done()
    jobs.ended.add("job-2")
    await asyncio.wait_for(second, 30)


async def test_all_are_served_by_one_look(jobs: Jobs, ends: Ends) -> None:
    waits = [asyncio.create_task(ends.of(f"job-{n % 10}", LONG_S)) for n in range(100)]
    await jobs.look()
    assert jobs.looks[-1] == [f"job-{n}" for n in range(10)]
    jobs.ended |= {f"job-{n}" for n in range(10)}
    await asyncio.wait_for(asyncio.gather(*waits), 30)


async def test_the_time_is_up(ends: Ends) -> None:
    await asyncio.wait_for(ends.of("job-1", 0.01), 30)


async def test_nobody_is_looked_for_any_more_once_he_has_left(jobs: Jobs, ends: Ends) -> None:
    left = asyncio.create_task(ends.of("job-1", LONG_S))
    await jobs.look()
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    stays = asyncio.create_task(ends.of("job-2", LONG_S))
    await jobs.look()
    assert jobs.looks[-1] == ["job-2"]
    jobs.ended.add("job-2")
    await asyncio.wait_for(stays, 30)


async def test_while_the_database_is_away_each_looks_for_himself(jobs: Jobs, ends: Ends) -> None:
    jobs.away = True
    await asyncio.wait_for(ends.of("job-1", LONG_S), 30)
    jobs.away = False
    jobs.ended.add("job-1")
    await asyncio.wait_for(ends.of("job-1", LONG_S), 30)


async def test_a_look_that_took_long_is_followed_by_another_soon(jobs: Jobs) -> None:
    times = itertools.count(step=1000)  # seconds: each look begins and ends so far apart
    ends = Ends(jobs.unfinished, clock=lambda: float(next(times)))
    wait = asyncio.create_task(ends.of("job-1", LONG_S))
    await asyncio.wait_for(jobs.look(), 30)
    jobs.ended.add("job-1")
    await asyncio.wait_for(wait, 30)
    ends.close()


async def test_a_release_lets_all_go_and_nobody_waits_again(jobs: Jobs, ends: Ends) -> None:
    waits = [asyncio.create_task(ends.of(f"job-{n}", LONG_S)) for n in range(3)]
    await jobs.look()
    ends.release()
    await asyncio.wait_for(asyncio.gather(*waits), 30)
    await asyncio.wait_for(ends.of("job-4", LONG_S), 30)


async def test_a_bug_in_a_look_ends_neither_the_thread_nor_a_wait(jobs: Jobs, ends: Ends) -> None:
    jobs.broken = True
    await asyncio.wait_for(ends.of("job-1", LONG_S), 30)
    jobs.broken = False
    jobs.ended.add("job-2")
    await asyncio.wait_for(ends.of("job-2", LONG_S), 30)
