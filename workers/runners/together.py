"""``together``: coroutines of one run that go on at once, none of which outlives it."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def together(runs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of all coroutines. Raise the first error by itself, once the others have ended."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run) for run in runs]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
