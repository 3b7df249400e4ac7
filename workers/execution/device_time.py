"""``DeviceTime``: how long each stage run had a worker's devices, of which a batch has one share each.

While n stage runs are in the engine, each has an n-th of the time that goes by. So what they have together is the time
in which the engine had any, and it is written down without a list of who came and went: a clock runs the slower, the
more there are, and a stage run's time is by how much that clock has gone on.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

_UNCOUNTED: Final = nullcontext()


class DeviceTime:
    """Divides the seconds in which an engine is busy among the stage runs in it. For one event loop, but ``of``."""

    def __init__(self, devices: int, clock: Callable[[], float] = time.monotonic) -> None:
        """``devices``: how many the engine uses at once, each of which counts; 0: it has none, and no time counts."""
        self._devices = devices
        self._clock = clock
        self._now = (0.0, clock(), 0)  # of the slow clock; when it was read; how many are in the engine
        self._since: dict[int, float] = {}  # stage run → the slow clock as it went in
        self._had: dict[int, float] = {}  # stage run → what it had before it went in

    def taken_by(self, stage_run: int) -> AbstractContextManager[object]:
        """Count while a stage run is in the engine. One that is in it already counts on, once."""
        return _Taken(self, stage_run) if self._devices and stage_run not in self._since else _UNCOUNTED

    def begin(self, stage_run: int) -> None:
        """Count from now on."""
        self._since[stage_run] = self._change(1)

    def end(self, stage_run: int) -> None:
        """Count no further."""
        since = self._since.pop(stage_run)
        self._had[stage_run] = self._had.get(stage_run, 0.0) + self._change(-1) - since

    def of(self, stage_run: int) -> float:
        """Return the device seconds that a stage run has had so far, to be called from any thread."""
        since = self._since.get(stage_run)
        inside = 0.0 if since is None else self._read() - since
        return self._devices * (self._had.get(stage_run, 0.0) + inside)

    def forget(self, stage_run: int) -> None:
        """Forget a stage run that has ended."""
        self._had.pop(stage_run, None)

    def _read(self) -> float:
        slow, read_at, inside = self._now
        return slow + (self._clock() - read_at) / inside if inside else slow

    def _change(self, by: int) -> float:
        """Let so many more into the engine, and return the slow clock."""
        slow = self._read()
        self._now = (slow, self._clock(), self._now[2] + by)
        return slow


class _Taken:
    """The time that one stage run is in the engine."""

    __slots__ = ("_stage_run", "_time")

    def __init__(self, time: DeviceTime, stage_run: int) -> None:
        self._time = time
        self._stage_run = stage_run

    def __enter__(self) -> None:
        self._time.begin(self._stage_run)

    def __exit__(self, *_: object) -> None:
        self._time.end(self._stage_run)
