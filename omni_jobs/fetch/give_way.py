"""``Breath``: lets the event loop's other tasks run while an answer that is all there is read."""

import asyncio
from weakref import WeakKeyDictionary

_WORK_S = 0.005
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def give_way() -> None:
    """Let other tasks run. Of readers that give way at the same time, one goes on in each turn of the loop.

    So many readers block the loop for no longer than one does.
    """
    async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        await asyncio.sleep(0)


class Breath:
    """Gives way every 5 ms: bytes that have come are read without a wait, however many pieces they are."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + _WORK_S

    async def take(self) -> None:
        """Let the others run, if it is time."""
        if self._loop.time() >= self._due:
            await give_way()
            self._due = self._loop.time() + _WORK_S
