"""``ProcessEnd``: the end of a worker's process by a stated time, whatever hangs in it, with all that it started."""

import atexit
import faulthandler
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from omni_jobs.stack.sentinel import is_resource_tracker

logger = logging.getLogger(__name__)

SPARE_S = 5.0
"""The seconds after a time set by ``within`` in which the process is gone at the latest."""


class ProcessEnd:
    """Ends this process: now, or at a time. Of several times the earliest counts. For any thread."""

    def __init__(self, exit_code: Callable[[], int]) -> None:
        """``exit_code`` is asked for the code of a process that did not end by itself in time."""
        self._exit_code = exit_code
        self._lock = threading.RLock()  # a signal's handler may interrupt ``within`` and call it
        self._at = math.inf

    def within(self, seconds: float) -> None:
        """End the process after ``seconds``, if it still lives then: something hangs in it."""
        with self._lock:
            at = time.monotonic() + seconds
            if at >= self._at:
                return
            self._at = at
            timer = threading.Timer(seconds, self._late)
            timer.daemon = True
            timer.start()
            # A thread of Python does not run while a library keeps the interpreter to itself, nor while the
            # interpreter frees what is left. This one is no thread of Python. It shows where all others stand.
            if sys.__stderr__ is not None:
                faulthandler.dump_traceback_later(seconds + SPARE_S, exit=True, file=sys.__stderr__)

    def unless_again_within(self, seconds: float) -> None:
        """End the process after ``seconds``, unless this or ``within`` is called before: no thread of Python runs.

        Native code keeps the interpreter's lock, or the process was stopped for so long that others have its work.
        """
        with self._lock:
            if math.isinf(self._at) and sys.__stderr__ is not None:
                faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)

    def _late(self) -> None:
        logger.critical("something hangs: the process ends without it")
        _kill_below(os.getpid())
        os._exit(self._exit_code())


def end_process(sender: Any, **_: Any) -> NoReturn:
    """Kill all processes below this one, call what ``atexit`` holds, and end, whatever other threads still do.

    Python itself would first wait for threads that load a model, and then free it object by object, for minutes on a
    busy machine. A receiver of Celery's signal ``worker_shutdown``; ``sender`` is Celery's worker.
    """
    _kill_below(os.getpid())
    atexit._run_exitfuncs()
    os._exit(sender.exitcode or 0)


def _kill_below(pid: int) -> None:
    """Kill the processes that ``pid`` started, and theirs: an engine and its ranks, at whatever moment of their start.

    The kernel kills an engine with its worker as well, but only once the engine's process has asked for it. Resource
    trackers of Python are left to remove the shared memory of the others, and end by themselves.
    """
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            parents[int(path.parent.name)] = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
    generation = [pid]
    while generation:
        generation = [child for child, parent in parents.items() if parent in generation]
        for child in generation:
            with suppress(OSError):
                if not is_resource_tracker(child):
                    os.kill(child, signal.SIGKILL)
