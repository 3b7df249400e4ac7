"""What every runner must do, whatever it runs: a suite that each runner's tests call with a ``Subject``.

A package with a runner of its own may copy this file.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from omni_jobs.errors import EngineDead, ModelError, TimeLimitExceeded
from omni_jobs.pipelines.stage_config import StageConfig
from workers.execution.run_time_limit import TimeLimit
from workers.runners.runner import Runner
from workers.stages.types import EnginePrompt, OmniModelRunnerOutput, Progress

SOON_S = 1.0  # for a cancelled run to end
LATE_S = 60.0  # nothing here takes so long


@dataclass(frozen=True)
class Subject:
    """A runner and its prompts.

    make     returns a new runner, not started
    short    returns a prompt that ends soon; prompts of different numbers differ
    long     a prompt that reports progress, and then runs for two seconds or more
    foreign  a prompt of another runner
    slots    how many stage runs it takes at once
    exact    whether an output is the same to the last bit in company
    """

    make: Callable[[], Runner]
    short: Callable[[int], EnginePrompt]
    long: EnginePrompt
    foreign: EnginePrompt
    slots: int = 4
    exact: bool = True


class Watch:
    """A progress sink that keeps what comes, and says when the first report that is no wait is there."""

    def __init__(self) -> None:
        self.seen: list[Progress] = []
        self.begun = asyncio.Event()

    def __call__(self, progress: Progress) -> None:
        self.seen.append(progress)
        if not progress.waiting:
            self.begun.set()


def quiet(progress: Progress) -> None:
    """A sink for progress nobody reads."""


@asynccontextmanager
async def started(subject: Subject) -> AsyncIterator[Runner]:
    """A started runner, closed at the end."""
    runner = subject.make()
    await runner.start()
    try:
        yield runner
    finally:
        await runner.close()


async def check(subject: Subject) -> None:
    """Check a runner's whole life, in one start, because a start may take half a minute."""
    async with asyncio.timeout(LATE_S * 5):
        async with started(subject) as runner:
            assert runner.healthy
            await check_many_at_once(subject, runner)
            await check_progress_and_cancel(subject, runner)
            await check_time_limit(subject, runner)
            await check_foreign_prompt(subject, runner)
            await check_close(subject, runner)
        await check_close_without_start(subject)


async def check_many_at_once(subject: Subject, runner: Runner) -> None:
    """More prompts at once than slots give what each gives alone."""
    numbers = range(subject.slots + 2)
    alone = await runner.run(subject.short(0), quiet)
    together = await asyncio.gather(*(runner.run(subject.short(number), quiet) for number in numbers))
    check_same(alone, together[0], exact=subject.exact)
    for output in (alone, *together):
        output.free()


async def check_progress_and_cancel(subject: Subject, runner: Runner) -> None:
    """Progress never goes back or over its total, and a cancelled run ends soon and harms no other."""
    watch = Watch()
    before = await runner.run(subject.short(1), quiet)
    task = asyncio.create_task(runner.run(subject.long, watch))
    async with asyncio.timeout(LATE_S):
        await watch.begun.wait()
    beside = asyncio.create_task(runner.run(subject.short(1), quiet))
    task.cancel()
    async with asyncio.timeout(SOON_S):
        with pytest.raises(asyncio.CancelledError):
            await task
    counted = [progress for progress in watch.seen if not progress.waiting]
    assert all(earlier.done <= later.done for earlier, later in pairwise(counted))
    assert all(progress.total is None or progress.done <= progress.total for progress in counted)
    assert all(progress.unit for progress in counted)
    assert runner.healthy
    check_same(before, await beside, exact=subject.exact)


async def check_time_limit(subject: Subject, runner: Runner) -> None:
    """A run that takes too long ends with the stage's time limit, and the runner lives on."""
    stage = StageConfig(name="slow", kind="any", processor="any", produces="any", time_limit_s=0.3)
    with pytest.raises(TimeLimitExceeded):
        async with TimeLimit(stage):
            await runner.run(subject.long, quiet)
    assert runner.healthy


async def check_foreign_prompt(subject: Subject, runner: Runner) -> None:
    """A prompt of another runner is refused, and the runner lives on."""
    with pytest.raises(ModelError):
        await runner.run(subject.foreign, quiet)
    assert runner.healthy


async def check_close(subject: Subject, runner: Runner) -> None:
    """Closing ends the runs in progress with EngineDead; it takes no more, and may be closed again."""
    watch = Watch()
    task = asyncio.create_task(runner.run(subject.long, watch))
    async with asyncio.timeout(LATE_S):
        await watch.begun.wait()
    await runner.close()
    async with asyncio.timeout(LATE_S):
        (ended,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(ended, EngineDead), repr(ended)
    assert not runner.healthy
    with pytest.raises(EngineDead):
        await runner.run(subject.short(0), quiet)
    await runner.close()


async def check_close_without_start(subject: Subject) -> None:
    """A runner that was never started may be closed."""
    await subject.make().close()


def check_same(one: OmniModelRunnerOutput, other: OmniModelRunnerOutput, *, exact: bool) -> None:
    """Check that two outputs of one prompt are the same: to the last bit, or within rounding."""
    assert (one.text, list(one.token_ids), one.finish_reason) == (
        other.text,
        list(other.token_ids),
        other.finish_reason,
    )
    assert one.values == other.values
    ours, theirs = _arrays(one.multimodal_outputs), _arrays(other.multimodal_outputs)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        if exact:
            np.testing.assert_array_equal(array, theirs[name])
        else:
            np.testing.assert_allclose(array, theirs[name], rtol=0, atol=1e-5)


def _arrays(outputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(value) for name, value in outputs.items()}
