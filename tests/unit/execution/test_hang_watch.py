"""The rule by which a stage run or an engine hangs: when it is told, and who is to blame."""

import asyncio
from collections.abc import Collection

import pytest

from workers.execution.hang_watch import Hang, HangWatch


class Bench:
    """A watch with short limits. The engine computes what the test says."""

    def __init__(self, computing: Collection[int], *, stop_limit_s: float = 0.05, stall_limit_s: float = 60):
        self.computing = computing
        self.hangs: list[Hang] = []
        self.told = asyncio.Event()
        self.watch = HangWatch(
            stop_limit_s=stop_limit_s,
            stall_limit_s=stall_limit_s,
            computing=lambda: self.computing,
            on_hang=self._on_hang,
        )

    def _on_hang(self, hang: Hang) -> None:
        self.hangs.append(hang)
        self.told.set()

    async def blamed(self) -> frozenset[int]:
        async with asyncio.timeout(20):
            await self.told.wait()
        [hang] = self.hangs
        return hang.blamed


@pytest.mark.parametrize(
    ("computing", "asked", "blamed"),
    [
        ([1, 2, 3], [2], {2}),
        ([1, 2], [2], {2}),
        ([1], [2], {1}),  # it waits behind another
        ([1, 2], [2, 3], {2}),
        ([], [2], {2}),  # the engine's own event loop stands
    ],
)
async def test_who_is_to_blame_for_a_run_that_does_not_stop(
    computing: Collection[int], asked: list[int], blamed: set[int]
) -> None:
    bench = Bench(computing)
    for run in (1, 2, 3):
        bench.watch.begin(run)
    for run in asked:
        bench.watch.expect_end(run)
    assert await bench.blamed() == blamed


async def test_an_engine_that_gets_on_with_nothing_hangs() -> None:
    bench = Bench([1, 2], stall_limit_s=0.05)
    for run in (1, 2, 3):
        bench.watch.begin(run)
    bench.watch.note(2, waits=True)  # for room in its runner
    assert await bench.blamed() == {1}


async def test_a_run_that_ends_in_time_is_no_hang() -> None:
    bench = Bench([1, 2], stop_limit_s=0.2)
    bench.watch.begin(1)
    bench.watch.begin(2)
    bench.watch.expect_end(1)
    bench.watch.end(1)
    bench.watch.note(1, waits=False)  # too late to count
    bench.watch.expect_end(2)
    assert await bench.blamed() == {2}


async def test_an_engine_that_computes_nothing_does_not_hang() -> None:
    bench = Bench([], stall_limit_s=0.02)
    bench.watch.begin(1)
    for _ in range(5):
        await asyncio.sleep(0.02)
    assert bench.hangs == []
    bench.computing = [1]
    assert await bench.blamed() == {1}
