"""An engine's process ends with the process that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["end_with_parent"]

_PR_SET_PDEATHSIG = 1


def end_with_parent(pid: int) -> bool:
    """Let the kernel kill this process when ``pid``, its parent, ends; False where it cannot (Linux can).

    It works on a process that hangs or is stopped as well. The signal follows the thread that
    started this process: it must live as long as this process may.
    """
    if sys.platform != "linux":
        return False
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if pid != os.getppid():  # it died before that
        os._exit(1)
    return True
