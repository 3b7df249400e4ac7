"""Threads of a model: a coroutine that is cancelled ends when the threads have shown that they do not hang."""

import asyncio
import threading

import pytest

from omni_jobs.errors import ModelError
from workers.runners.model_threads import ModelThreads
from workers.runners.runner import CURRENT_RUN


class Blocking:
    """A call that blocks its thread until the test lets it go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_end = threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        self.may_end.wait(60)


def start(threads: ModelThreads, call: Blocking, stage_run: int) -> asyncio.Task[None]:
    async def run() -> None:
        CURRENT_RUN.set(stage_run)
        await threads.run(call)

    return asyncio.create_task(run())


async def test_a_cancelled_call_ends_with_its_thread_and_holds_up_those_behind_it() -> None:
    threads = ModelThreads(1, "stage")
    hanging, waiting = Blocking(), Blocking()
    culprit = start(threads, hanging, 1)
    await asyncio.to_thread(hanging.begun.wait)
    behind = start(threads, waiting, 2)
    await asyncio.sleep(0)
    culprit.cancel()
    behind.cancel()
    behind.cancel()  # a second time changes nothing
    assert not (await asyncio.wait({culprit, behind}, timeout=0.2))[0]
    assert set(threads.computing) == {1}
    hanging.may_end.set()
    async with asyncio.timeout(20):
        await asyncio.wait({culprit, behind})
    assert culprit.cancelled()
    assert behind.cancelled()
    await threads.close()
    assert not waiting.begun.is_set(), "nobody waits for it"
    assert set(threads.computing) == set()


async def test_a_call_that_begins_as_it_is_cancelled_holds_its_coroutine() -> None:
    """Its thread has found it wanted, and has not told the loop yet, when another call shows that the threads move."""
    threads = ModelThreads(2, "stage")
    wanted, may_tell, tell = threading.Event(), threading.Event(), threads._tell

    def tell_late(loop: asyncio.AbstractEventLoop, stage_run: int, by: int) -> None:
        if (stage_run, by) == (1, 1):
            wanted.set()
            may_tell.wait(60)
        tell(loop, stage_run, by)

    threads._tell = tell_late  # type: ignore[method-assign]
    call = Blocking()
    task = start(threads, call, 1)
    await asyncio.to_thread(wanted.wait)
    task.cancel()
    await asyncio.sleep(0)
    CURRENT_RUN.set(2)
    await threads.run(lambda: None)
    may_tell.set()
    await asyncio.to_thread(call.begun.wait)
    assert not task.done()
    call.may_end.set()
    async with asyncio.timeout(20):
        await asyncio.wait({task})
    assert task.cancelled()
    await threads.close()


async def test_nothing_is_kept_of_the_stage_runs_whose_calls_have_ended() -> None:
    threads = ModelThreads(2, "stage")
    for stage_run in range(100):
        CURRENT_RUN.set(stage_run)
        await threads.run(lambda: None)
    await threads.close()
    await asyncio.sleep(0)  # the last call's end is told
    assert not threads.computing
    assert not threads._in_threads


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration])
async def test_what_would_end_a_loop_or_leave_it_waiting_is_an_error_of_the_model(error: type[BaseException]) -> None:
    def escape() -> None:
        raise error

    threads = ModelThreads(1, "stage")
    async with asyncio.timeout(20):
        with pytest.raises(ModelError, match=error.__name__):
            await threads.run(escape)
        assert await threads.run(lambda: 1) == 1
        await threads.close()
