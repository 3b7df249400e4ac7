"""omni_jobs.watch.cached_value: how long a value is kept, and who waits for a new one."""

import asyncio
import threading

import pytest
from anyio.to_thread import run_sync

from omni_jobs.errors import DatabaseUnavailable
from omni_jobs.watch.cached_value import CachedValue

PATIENCE_S = 30.0


class Table:
    """Counting it takes a while; ``now`` is its clock."""

    def __init__(self, takes_s: float) -> None:
        self.now = 100.0
        self.counts = 0
        self.takes_s = takes_s
        self.away = False
        self.begun = threading.Event()
        self.open = threading.Event()
        self.open.set()

    def count(self) -> int:
        if self.away:
            raise DatabaseUnavailable("away")
        self.begun.set()
        assert self.open.wait(PATIENCE_S)
        self.counts += 1
        self.now += self.takes_s
        return self.counts

    def cached(self, **kept: float) -> CachedValue[int]:
        return CachedValue(self.count, run_sync, clock=lambda: self.now, **kept)

    async def counting(self, cached: CachedValue[int]) -> asyncio.Task[int]:
        """Begin a count that goes on until ``open`` is set."""
        self.open.clear()
        self.begun.clear()
        task = asyncio.create_task(cached.get())
        assert await run_sync(self.begun.wait, PATIENCE_S)
        return task


async def test_what_takes_a_moment_is_always_fresh() -> None:
    cached = Table(takes_s=0.01).cached()
    assert [await cached.get() for _ in range(3)] == [1, 2, 3]


async def test_what_takes_a_moment_is_kept_as_long_as_its_owner_says() -> None:
    table = Table(takes_s=0.01)
    cached = table.cached(least_kept_s=1.0)
    assert [await cached.get() for _ in range(3)] == [1, 1, 1]
    table.now += 1.0
    assert await cached.get() == 2


async def test_what_takes_long_is_kept_for_a_while() -> None:
    table = Table(takes_s=0.5)
    cached = table.cached()
    assert [await cached.get() for _ in range(3)] == [1, 1, 1]
    table.now += 9.0
    assert await cached.get() == 1
    table.now += 1.0
    assert await cached.get() == 2


async def test_nothing_is_kept_for_longer_than_its_owner_says() -> None:
    table = Table(takes_s=0.5)
    cached = table.cached(least_kept_s=1.0, most_kept_s=4.0)
    assert [await cached.get() for _ in range(3)] == [1, 1, 1]
    table.now += 4.0
    assert await cached.get() == 2


async def test_an_error_is_raised_and_not_kept() -> None:
    table = Table(takes_s=0.5)
    table.away = True
    cached = table.cached()
    with pytest.raises(DatabaseUnavailable):
        await cached.get()
    table.away = False
    assert await cached.get() == 1


async def test_the_old_value_is_given_while_a_new_one_is_computed() -> None:
    table = Table(takes_s=0.5)
    cached = table.cached()
    await cached.get()
    table.now += 10.0
    first = await table.counting(cached)
    assert [await cached.get() for _ in range(3)] == [1, 1, 1]
    table.open.set()
    assert await first == 2
    assert await cached.get() == 2


async def test_a_very_old_value_is_given_to_nobody() -> None:
    table = Table(takes_s=0.5)
    cached = table.cached()
    await cached.get()
    table.now += 3600.0
    first = await table.counting(cached)
    second = asyncio.create_task(cached.get())
    table.open.set()
    assert [await first, await second] == [2, 2]


async def test_it_is_computed_once_for_all_who_wait_and_one_who_leaves_harms_nobody() -> None:
    table = Table(takes_s=0.01)
    cached = table.cached()
    first = await table.counting(cached)
    others = [asyncio.create_task(cached.get()) for _ in range(20)]
    await asyncio.sleep(0)
    first.cancel()
    table.open.set()
    assert await asyncio.gather(*others) == [1] * 20
