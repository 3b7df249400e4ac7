"""``Breath``: lets the event loop's other tasks run while an answer that is all there is read."""

import asyncio

_WORK_S = 0.005


class Breath:
    """Give way every 5 ms: bytes that have come are read without a wait, however many pieces they are."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + _WORK_S

    async def take(self) -> None:
        """Let the others run, if it is time."""
        if self._loop.time() >= self._due:
            await asyncio.sleep(0)
            self._due = self._loop.time() + _WORK_S
