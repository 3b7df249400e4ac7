"""Parent death signal: the kernel kills an engine's process when the process that started it ends.

As a script it runs any program so: ``python workers/parent_death.py PARENT PROGRAM …``.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

NOT_STARTED = 127
"""The exit status of the script where the program cannot be started, as a shell's."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent(pid: int) -> None:
    """Ask the kernel to kill this process when its parent ``pid`` ends; exit at once if the parent has ended already.

    The signal also reaches a process that hangs or is stopped. The kernel sends it when the thread that started this
    process ends, so that thread must live as long as this process may. Raises OSError when the kernel refuses.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != pid:
        os._exit(1)


def is_running(pid: int) -> bool:
    """Return whether there is such a process that has not ended; one whose parent has not heard of its end has."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    try:
        os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 the caller's own program, without a shell
    except OSError as error:
        sys.stderr.write(str(error.strerror))
        sys.exit(NOT_STARTED)
