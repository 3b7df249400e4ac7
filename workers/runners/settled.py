"""``settled``: a wait that goes on when its task is cancelled, for the end of what a run began elsewhere."""

import asyncio
from contextlib import suppress
from typing import Any


async def settled(future: "asyncio.Future[Any]") -> None:
    """Return once a future is done, whatever its result; it is not cancelled with the caller.

    For a caller that was cancelled and owes the end of what it began: to cancel it again changes nothing.
    """
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({future})
    if not future.cancelled():
        future.exception()  # it is the caller's own end that counts
