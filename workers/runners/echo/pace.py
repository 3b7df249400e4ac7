"""``StepPace``: work that takes as long as a job wants it to, in equal steps."""

import asyncio


class StepPace:
    """Spreads ``steps`` evenly over ``delay_s`` seconds from now on; 0: nothing is waited for."""

    def __init__(self, delay_s: float, steps: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._step_s = delay_s / max(steps, 1)

    async def wait_for(self, step: int) -> None:
        """Wait until this step, of 1 … ``steps``, is due; one that is late is not waited for."""
        left = self._began + step * self._step_s - self._loop.time()
        if self._step_s and left > 0:
            await asyncio.sleep(left)
