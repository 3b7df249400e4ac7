"""What a run owes when it is cancelled: the end of all that it began, on threads, in an engine and in other tasks."""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


def is_cancelled() -> bool:
    """Return whether somebody cancels the current task. A CancelledError may also come of what the task waits for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def settled(future: "asyncio.Future[Any]") -> None:
    """Return once a future is done, whatever its result; it is not cancelled with the caller.

    For a caller that was cancelled and owes the end of what it began: to cancel it again changes nothing.
    """
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({future})
    if not future.cancelled():
        future.exception()  # it is the caller's own end that counts


async def together(runs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of coroutines that go on at once, in their order. None of them outlives the caller.

    When one fails, the others are cancelled. Raises the first error by itself, once all have ended.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run) for run in runs]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
