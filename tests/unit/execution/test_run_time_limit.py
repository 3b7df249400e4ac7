"""The time limit stands still while a runner holds a stage run back."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from omni_jobs.errors import TimeLimitExceeded
from omni_jobs.pipelines.loader import load_pipeline
from omni_jobs.pipelines.stage_config import StageConfig
from workers.execution.run_time_limit import TimeLimit
from workers.stages.types import WAITING, Progress

FIRST = load_pipeline(Path(__file__).parents[3] / "stage_configs" / "echo.yaml").stage("first")
HELD_BACK = Progress(0, None, WAITING)
GOES_ON = Progress(0, 10, "tokens")


def stage(time_limit_s: float) -> StageConfig:
    return FIRST.model_copy(update={"time_limit_s": time_limit_s})


async def limited(time_limit_s: float, body: Callable[[TimeLimit], Awaitable[None]]) -> None:
    async with TimeLimit(stage(time_limit_s)) as limit:
        await body(limit)


async def test_a_block_is_cancelled_after_its_time() -> None:
    over = asyncio.Event()
    with pytest.raises(TimeLimitExceeded, match=r"not done after 0\.01 s") as caught:
        async with TimeLimit(stage(0.01), over.set):
            await asyncio.sleep(60)
    assert caught.value.stage == "first"
    assert over.is_set()


async def test_a_block_that_ends_in_time_is_left_alone() -> None:
    over = asyncio.Event()
    async with TimeLimit(stage(0.05), over.set) as limit:
        pass
    limit.note(HELD_BACK)
    limit.note(GOES_ON)  # of a runner that says it late
    await asyncio.sleep(0.1)
    assert not over.is_set()


async def test_waiting_does_not_count() -> None:
    waited = asyncio.Event()

    async def wait(limit: TimeLimit) -> None:
        limit.note(HELD_BACK)
        limit.note(HELD_BACK)
        await asyncio.sleep(0.2)  # four times as long as it may take
        waited.set()
        limit.note(GOES_ON)
        await asyncio.sleep(60)

    with pytest.raises(TimeLimitExceeded):
        await limited(0.05, wait)
    assert waited.is_set()


async def test_time_used_before_waiting_stays_used() -> None:
    async def wait_often(limit: TimeLimit) -> None:
        for _ in range(20):  # a clock set back each time would never be over
            await asyncio.sleep(0.1)
            limit.note(HELD_BACK)
            limit.note(GOES_ON)

    with pytest.raises(TimeLimitExceeded):
        await limited(0.2, wait_often)


async def test_a_limit_that_ran_out_while_the_loop_lagged_is_over_after_the_wait() -> None:
    async def lag(limit: TimeLimit) -> None:
        time.sleep(0.05)  # nothing else runs, the timer neither
        limit.note(HELD_BACK)
        limit.note(GOES_ON)
        await asyncio.sleep(60)

    with pytest.raises(TimeLimitExceeded):
        await limited(0.01, lag)


async def test_a_block_that_is_cancelled_from_outside_is_not_over_its_time() -> None:
    async def run() -> None:
        async with TimeLimit(stage(60)):
            await asyncio.sleep(60)

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_timeout_of_the_block_s_own_passes() -> None:
    with pytest.raises(TimeoutError, match="the block's own"):
        async with TimeLimit(stage(60)):
            raise TimeoutError("the block's own")
