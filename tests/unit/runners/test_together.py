"""Coroutines that go on at once end together."""

import asyncio
import threading

import pytest

from workers.runners.cancellation import together
from workers.runners.model_threads import ModelThreads


async def test_a_run_that_is_cancelled_outlives_each_of_its_calls() -> None:
    threads = ModelThreads(2, "stage")
    begun, may_end = threading.Barrier(3), (threading.Event(), threading.Event())

    def block(number: int) -> None:
        begun.wait(60)
        may_end[number].wait(60)

    ends: list[int] = []

    async def call(number: int) -> None:
        try:
            await threads.run(lambda: block(number))
        finally:
            ends.append(number)

    run = asyncio.create_task(together([call(0), call(1)]))
    await asyncio.to_thread(begun.wait, 60)
    run.cancel()
    may_end[0].set()
    async with asyncio.timeout(20):
        while not ends:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        assert not run.done()
        may_end[1].set()
        with pytest.raises(asyncio.CancelledError):
            await run
    assert ends == [0, 1]
    await threads.close()


async def test_the_first_error_is_raised_by_itself_once_the_others_have_ended() -> None:
    ended = False

    async def wait() -> None:
        nonlocal ended
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended = True

    async def fail() -> None:
        raise LookupError("first")

    with pytest.raises(LookupError, match="first"):
        await together([wait(), fail()])
    assert ended
