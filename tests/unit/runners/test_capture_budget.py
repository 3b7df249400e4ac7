"""The budget of hidden states: never above it, the oldest first, given back on every way out."""

import asyncio
import gc
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_jobs.errors import PayloadTooLarge
from workers.runners.ar import capture_budget
from workers.runners.ar.capture_budget import ENLARGE_SPOOL, CaptureBudget, CaptureShare, default_capture_bytes


async def _turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_what_fits_is_reserved_at_once_and_given_back_once() -> None:
    budget = CaptureBudget(100)
    first, second = await budget.reserve(60), await budget.reserve(40)
    assert (budget.reserved, budget.waiting) == (100, 0)
    first.free()
    first.free()
    assert budget.reserved == 40
    second.free()
    assert budget.reserved == 0


async def test_above_the_budget_a_request_waits_until_there_is_room() -> None:
    budget = CaptureBudget(100)
    first = await budget.reserve(80)
    waiting = asyncio.create_task(budget.reserve(30))
    await _turn()
    assert not waiting.done()
    first.free()
    (await waiting).free()
    assert budget.reserved == 0


async def test_a_large_one_is_not_passed_by_small_ones() -> None:
    budget = CaptureBudget(100)
    held = [await budget.reserve(50), await budget.reserve(50)]
    order: list[str] = []

    async def ask(name: str, need: int) -> None:
        room = await budget.reserve(need)
        order.append(name)
        await asyncio.sleep(0)
        room.free()

    tasks = [asyncio.create_task(ask("large", 100))]
    await _turn()
    tasks += [asyncio.create_task(ask(f"small{n}", 10)) for n in range(3)]
    await _turn()
    held[0].free()  # 50 are free: a small one would fit
    await _turn()
    assert order == []
    held[1].free()
    await asyncio.gather(*tasks)
    assert order == ["large", "small0", "small1", "small2"]
    assert budget.reserved == 0


async def test_cancelling_one_that_waits_lets_those_behind_it_in() -> None:
    budget = CaptureBudget(100)
    held = await budget.reserve(50)
    large = asyncio.create_task(budget.reserve(100))
    await _turn()
    small = asyncio.create_task(budget.reserve(10))
    await _turn()
    large.cancel()
    with pytest.raises(asyncio.CancelledError):
        await large
    (await small).free()
    held.free()
    assert (budget.reserved, budget.waiting) == (0, 0)


async def test_one_cancelled_in_the_turn_in_which_it_is_let_in_gives_it_back() -> None:
    budget = CaptureBudget(100)
    held = await budget.reserve(100)
    waiting = asyncio.create_task(budget.reserve(100))
    await _turn()
    held.free()  # granted; its task has not run yet
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert budget.reserved == 0


async def test_one_cancelled_just_before_room_is_given_back_is_passed_over() -> None:
    budget = CaptureBudget(100)
    held = await budget.reserve(100)
    first, second = (asyncio.create_task(budget.reserve(100)) for _ in range(2))
    await _turn()
    first.cancel()  # its task has not run yet
    held.free()
    with pytest.raises(asyncio.CancelledError):
        await first
    (await second).free()
    assert (budget.reserved, budget.waiting) == (0, 0)


async def test_all_that_wait_are_cancelled_in_one_turn() -> None:
    budget = CaptureBudget(100)
    held = await budget.reserve(50)
    tasks = [asyncio.create_task(budget.reserve(need)) for need in (100, 10, 100, 20)]
    await _turn()
    for task in tasks:
        task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(end) for end in ends] == [asyncio.CancelledError] * 4
    held.free()
    assert (budget.reserved, budget.waiting) == (0, 0)


async def test_one_too_large_alone_is_refused_with_need_limit_and_setting() -> None:
    budget = CaptureBudget(1000)
    held = await budget.reserve(1000)  # it does not even wait
    with pytest.raises(PayloadTooLarge) as caught:
        await budget.reserve(1001)
    assert not caught.value.retryable
    assert caught.value.retry_class is None
    assert "needs 1,001 bytes" in caught.value.message
    assert "1,000 at most" in caught.value.message
    assert "OMNI_JOBS_CAPTURE_BYTES" in caught.value.message
    held.free()


async def test_a_reservation_nobody_holds_is_freed() -> None:
    budget = CaptureBudget(100)

    async def lose() -> None:
        await budget.reserve(100)

    await lose()
    gc.collect()
    await _turn()
    assert budget.reserved == 0


Step = tuple[int, int, bool]
"""An event: reserve, free, cancel or cancel all; its number; True if the tasks run before the next event."""


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60), st.booleans()), max_size=60))
def test_whatever_happens_the_budget_holds_and_comes_back_whole(steps: list[Step]) -> None:
    async def play() -> None:
        budget = CaptureBudget(100)
        asked: list[asyncio.Task[CaptureShare]] = []
        started: list[int] = []

        async def ask(number: int, need: int) -> CaptureShare:
            room = await budget.reserve(need)
            started.append(number)
            return room

        turns = all(turn for _, _, turn in steps)
        for kind, value, turn in steps:
            if kind == 0:
                asked.append(asyncio.create_task(ask(len(asked), value)))
            elif asked:
                task = asked[value % len(asked)]
                if kind == 1 and task.done() and not task.cancelled():
                    task.result().free()
                elif kind == 2:
                    task.cancel()
                elif kind == 3:
                    for each in asked:
                        each.cancel()
            if turn:
                await _turn()
            assert 0 <= budget.reserved <= budget.limit
            assert not turns or started == sorted(started)  # in the order in which they came
        while not all(task.done() for task in asked):
            for task in asked:
                if task.done() and not task.cancelled():
                    task.result().free()
            await _turn()
        for task in asked:
            if not task.cancelled():
                task.result().free()
        assert (budget.reserved, budget.waiting) == (0, 0)

    asyncio.run(play())


def test_the_default_is_bounded_by_memory_and_by_the_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(capture_budget, "_CGROUP_LIMITS", (limit, tmp_path / "none"))
    limit.write_text("max\n")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert default_capture_bytes(1 << 60) == min(8 << 30, memory // 4)
    limit.write_text(f"{400 << 20}\n")  # a container's
    assert default_capture_bytes(1 << 60) == 100 << 20
    assert default_capture_bytes(1000) == 1000


async def test_where_the_spool_is_the_bound_the_error_says_so() -> None:
    with pytest.raises(PayloadTooLarge, match="or give the worker a larger spool") as caught:
        await CaptureBudget(1000, ENLARGE_SPOOL).reserve(1001)
    assert "OMNI_JOBS_SPOOL_DIR" in caught.value.message
    assert "OMNI_JOBS_CAPTURE_BYTES" not in caught.value.message
