"""What every runner must do, whatever it runs: a suite that each runner's tests call with a ``Subject``.

A package with a runner of its own may copy this file.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from omni_jobs.errors import EngineDead, ModelError, TimeLimitExceeded
from omni_jobs.pipelines.stage_config import StageConfig
from workers.execution.run_time_limit import TimeLimit
from workers.runners.runner import CURRENT_RUN, Runner, TellingRunner
from workers.stages.types import EnginePrompt, OmniModelRunnerOutput, Progress

SOON_S = 1.0  # for a cancelled run to end
LATE_S = 60.0  # nothing here takes so long
HELD_S = 0.3  # a run that ends for another reason than its engine does so sooner
CULPRIT, NEIGHBOUR = 1, 2  # what ``CURRENT_RUN`` is for two stage runs of which one is to blame
BLOCKED_S = 5.0  # the least that ``stall_after_s`` may be: then a worker takes its event loop for blocked


@dataclass(frozen=True)
class Subject:
    """A runner and its prompts.

    make     returns a new runner, not started
    short    returns a prompt that ends soon; prompts of different numbers differ
    long     a prompt that reports progress, and then runs for a second or more
    foreign  a prompt of another runner
    slots    how many stage runs it takes at once
    exact    whether an output is the same to the last bit in company

    The last five are empty for a runner to which that cannot happen, or only out of a test's reach:

    hang     the context in which the engine's steps do not end
    killed   whether closing ends an engine that hangs; a thread of the worker's own ends with the worker alone
    escapes  the contexts in which the model's code raises this exception over a short prompt, the one of the number 0
             where ``CURRENT_RUN`` is ``CULPRIT``, and over no other
    die      kills the engine, and returns at once or with its next step
    flood    a prompt whose answer has no end
    """

    make: Callable[[], Runner]
    short: Callable[[int], EnginePrompt]
    long: EnginePrompt
    foreign: EnginePrompt
    slots: int = 4
    exact: bool = True
    hang: Callable[[Runner], AbstractContextManager[None]] | None = None
    killed: bool = False
    escapes: Sequence[Callable[[Runner, type[BaseException]], AbstractContextManager[None]]] = ()
    die: Callable[[Runner], None] | None = None
    flood: EnginePrompt | None = None


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
            await check_event_loop(subject, runner)
            await check_crowd(subject, runner)
            await check_hang(subject, runner)
            await check_escapes(subject, runner)
            await check_flood(subject, runner)
            await check_close(subject, runner)
        await check_death(subject)
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


async def check_event_loop(subject: Subject, runner: Runner) -> None:
    """No run blocks the event loop for so long that its worker would be started anew."""
    loop = asyncio.get_running_loop()
    watch = Watch()
    task = asyncio.create_task(runner.run(subject.long, watch))
    longest, last, until = 0.0, loop.time(), loop.time() + LATE_S
    while not watch.begun.is_set() or last < until:
        if watch.begun.is_set():
            until = min(until, last + SOON_S)
        await asyncio.sleep(0.01)
        longest, last = max(longest, loop.time() - last), loop.time()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert watch.begun.is_set()
    assert longest < BLOCKED_S


async def check_crowd(subject: Subject, runner: Runner) -> None:
    """A crowd of prompts that nobody wants any more holds up none that follows."""
    alone = await runner.run(subject.short(2), quiet)
    crowd = [asyncio.create_task(runner.run(subject.long, quiet)) for _ in range(4 * subject.slots)]
    await asyncio.sleep(0)
    for task in crowd:
        task.cancel()
    async with asyncio.timeout(LATE_S):
        after = await runner.run(subject.short(2), quiet)
        ended = await asyncio.gather(*crowd, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ended)
    check_same(alone, after, exact=subject.exact)


def run_as(stage_run: int, runner: Runner, prompt: EnginePrompt) -> asyncio.Task[OmniModelRunnerOutput]:
    """Run a prompt for a stage run of this id, as the executor does."""
    context = copy_context()
    context.run(CURRENT_RUN.set, stage_run)
    return asyncio.create_task(runner.run(prompt, quiet), context=context)


async def check_hang(subject: Subject, runner: Runner) -> None:
    """A cancelled run ends no sooner than the engine has dropped it, so its worker can tell that the engine hangs."""
    if subject.hang is None:
        return
    with subject.hang(runner):
        task = run_as(CULPRIT, runner, subject.short(0))
        await asyncio.wait({task}, timeout=HELD_S)
        task.cancel()
        await asyncio.wait({task}, timeout=HELD_S)
        assert not task.done()
        check_blame(runner, {CULPRIT})
    async with asyncio.timeout(LATE_S):
        await asyncio.wait({task})
    assert task.cancelled()
    check_blame(runner, set())
    assert runner.healthy
    (await runner.run(subject.short(0), quiet)).free()


def check_blame(runner: Runner, most: set[int]) -> None:
    """Check that a runner that tells for whom its engine computes names no other stage runs."""
    if isinstance(runner, TellingRunner):
        assert set(runner.computing) <= most


async def check_escapes(subject: Subject, runner: Runner) -> None:
    """What the model's code raises over a prompt ends its run alone, also what would end a process."""
    usual, *others = (RuntimeError, SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration)
    for escape, error in product(subject.escapes, (usual, *others)):
        with escape(runner, error):
            async with asyncio.timeout(LATE_S):
                runs = run_as(CULPRIT, runner, subject.short(0)), run_as(NEIGHBOUR, runner, subject.short(1))
                ended, beside = await asyncio.gather(*runs, return_exceptions=True)
        assert isinstance(ended, ModelError | usual if error is usual else ModelError), repr(ended)
        assert isinstance(beside, OmniModelRunnerOutput), repr(beside)
        beside.free()
        assert runner.healthy
    (await runner.run(subject.short(0), quiet)).free()


async def check_flood(subject: Subject, runner: Runner) -> None:
    """An answer without end ends its run, and harms no other."""
    if subject.flood is None:
        return
    async with asyncio.timeout(LATE_S):
        flooded, beside = await asyncio.gather(
            runner.run(subject.flood, quiet), runner.run(subject.short(0), quiet), return_exceptions=True
        )
    assert isinstance(flooded, ModelError), repr(flooded)
    assert isinstance(beside, OmniModelRunnerOutput), repr(beside)
    assert runner.healthy


async def check_death(subject: Subject) -> None:
    """Once its engine is dead a runner's runs end with EngineDead, it takes no more, and says so."""
    if subject.die is None:
        return
    async with started(subject) as runner:
        watch = Watch()
        tasks = [asyncio.create_task(runner.run(subject.long, watch)) for _ in range(2)]
        async with asyncio.timeout(LATE_S):
            await watch.begun.wait()
            subject.die(runner)
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, EngineDead) for end in ended), repr(ended)
        assert not runner.healthy
        with pytest.raises(EngineDead):
            await runner.run(subject.short(0), quiet)


async def check_close(subject: Subject, runner: Runner) -> None:
    """Closing ends the runs in progress with EngineDead, also of an engine that hangs; it may be closed again."""
    watch = Watch()
    task = asyncio.create_task(runner.run(subject.long, watch))
    async with asyncio.timeout(LATE_S):
        await watch.begun.wait()
        with subject.hang(runner) if subject.hang is not None and subject.killed else nullcontext():
            await runner.close()
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


@contextmanager
def raising_threads(runner: Any, error: type[BaseException]) -> Iterator[None]:
    """On the threads of a runner that has ``ModelThreads``, the calls for the culprit raise this."""

    def escape() -> None:
        raise error

    run = runner._threads.run
    with patch.object(runner._threads, "run", lambda call: run(escape if CURRENT_RUN.get() == CULPRIT else call)):
        yield
