"""CPU cores: how many threads an engine may use, and a scheduling policy for the processes beside the engines."""

import os
from contextlib import suppress


def threads_per_engine(engines: int) -> int:
    """Return how many threads each engine may compute with if ``engines`` of them share this host's cores; at least 1.

    One core stays free for other processes, because a delay of one of an engine's threads stops all of them.
    """
    return max(1, (len(os.sched_getaffinity(0)) - 1) // max(1, engines))


def use_batch_policy(process: int = 0) -> None:
    """Put the main thread of ``process``, an id, under Linux's SCHED_BATCH policy; 0 means the calling thread.

    Threads and processes that it starts later inherit the policy. Their frequent wake-ups then no longer preempt a
    model's threads: they wait some milliseconds for a core, and their share of the cores stays the same. Change nothing
    where the operator chose another policy or the system refuses this one.
    """
    with suppress(OSError):  # a sandbox may refuse the call, and the process may have ended
        if os.sched_getscheduler(process) == os.SCHED_OTHER:
            os.sched_setscheduler(process, os.SCHED_BATCH, os.sched_param(0))
