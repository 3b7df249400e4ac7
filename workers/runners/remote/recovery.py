"""``Recovery``: the wait of all stage runs for a server that is away, with one look at it for all of them."""

import asyncio
import random
from collections.abc import Awaitable, Callable

_FIRST_S, _LONGEST_S, _GROWTH = 0.25, 5.0, 1.5  # pauses between two looks


class Recovery:
    """Waits until a server is back."""

    def __init__(self, is_back: Callable[[], Awaitable[bool]]) -> None:
        """Take the question that is asked again and again, while somebody waits."""
        self._is_back = is_back
        self._waiting = 0
        self._looking: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        """Return once the server is back, for however many wait at once."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        looking = self._looking
        self._waiting += 1
        try:
            await asyncio.shield(looking)
        finally:
            self._waiting -= 1
            if not self._waiting:
                looking.cancel()

    async def _look(self) -> None:
        pause = _FIRST_S
        while not await self._is_back():
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 — spreads the looks of many workers
            pause = min(pause * _GROWTH, _LONGEST_S)
