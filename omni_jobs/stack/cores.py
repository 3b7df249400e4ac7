"""How the cores are shared between models and all that serves them."""

from __future__ import annotations

import os

__all__ = ["give_way", "threads_per_engine"]


def threads_per_engine(engines: int) -> int:
    """An engine's share of all cores but one: its threads all wait for the one that something else delays."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return max(1, (cores - 1) // max(1, engines))


def give_way(process: int = 0) -> bool:
    """From now on this thread, and what it starts, takes no core from a computation by waking up.

    ``process``: its first thread, in place of the caller's.

    What serves a model wakes up for a moment hundreds of times a second. Linux would let it interrupt
    the model's thread each time, though another core is free or about to be; a task of ``SCHED_BATCH``
    gets the same share of the cores, and waits those milliseconds for it. False, and nothing is changed,
    where the operator chose another policy, and where the system has none or does not allow it.
    """
    if not hasattr(os, "SCHED_BATCH"):
        return False
    try:
        if os.sched_getscheduler(process) != os.SCHED_OTHER:
            return False
        os.sched_setscheduler(process, os.SCHED_BATCH, os.sched_param(0))
    except OSError:  # a sandbox may not know the call, or the process has ended
        return False
    return True
