"""The time limit stands still while a runner holds a stage run back."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from omni_jobs.errors import TimeLimitExceeded
from omni_jobs.pipelines.loader import load_pipeline
from workers.execution.time_limit import TimeLimit
from workers.stages.stage import Stage
from workers.stages.types import WAITING, Progress

PIPELINE = load_pipeline(Path(__file__).parents[3] / "stage_configs" / "echo.yaml")
HELD_BACK = Progress(0, None, WAITING)
GOES_ON = Progress(0, 10, "tokens")


async def test_it_is_over_after_its_time() -> None:
    over = asyncio.Event()
    TimeLimit(0.01, over.set)
    async with asyncio.timeout(20):
        await over.wait()


async def test_waiting_does_not_count() -> None:
    over = asyncio.Event()
    limit = TimeLimit(0.05, over.set)
    limit.see(HELD_BACK)
    limit.see(HELD_BACK)
    await asyncio.sleep(0.2)  # four times what it may take
    assert not over.is_set()
    limit.see(GOES_ON)
    async with asyncio.timeout(20):
        await over.wait()


async def test_what_was_used_before_waiting_stays_used() -> None:
    over = asyncio.Event()
    limit = TimeLimit(0.2, over.set)
    for _ in range(4):  # a clock set back each time would never be over
        await asyncio.sleep(0.1)
        limit.see(HELD_BACK)
        limit.see(GOES_ON)
    assert over.is_set()


async def test_a_limit_that_ran_out_while_the_loop_lagged_is_over_after_the_wait() -> None:
    over = asyncio.Event()
    limit = TimeLimit(0.01, over.set)
    time.sleep(0.05)  # nothing else runs, the timer neither
    limit.see(HELD_BACK)
    limit.see(GOES_ON)
    async with asyncio.timeout(20):
        await over.wait()


async def test_cancelled_it_is_never_over() -> None:
    over = asyncio.Event()
    limit = TimeLimit(0.01, over.set)
    limit.cancel()
    limit.see(GOES_ON)
    await asyncio.sleep(0.1)
    assert not over.is_set()


async def test_offline_a_stage_held_back_is_not_over_time() -> None:
    config = PIPELINE.stage("first").model_copy(update={"time_limit_s": 0.05})
    stage = Stage(PIPELINE, config, None)
    async with stage.time_limit() as limit:
        limit.see(HELD_BACK)
        await asyncio.sleep(0.2)

    async def goes_on() -> None:
        async with stage.time_limit() as limit:
            limit.see(HELD_BACK)
            limit.see(GOES_ON)
            await asyncio.sleep(60)

    with pytest.raises(TimeLimitExceeded):
        await goes_on()
