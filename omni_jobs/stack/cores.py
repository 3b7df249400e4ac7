"""CPU cores: each engine's share of them, and the scheduling policy of the processes beside the engines."""

import os


def threads_per_engine(engines: int) -> int:
    """Return how many threads each of ``engines`` engines on this host may compute with; at least 1.

    One core is left over, because an engine's threads wait for each other: if anything else delays one, all stand
    still.
    """
    return max(1, (len(os.sched_getaffinity(0)) - 1) // max(1, engines))


def use_batch_policy(process: int = 0) -> bool:
    """Put this thread and its future children under SCHED_BATCH, so that their wake-ups do not preempt a model.

    A broker or a worker's control threads wake up hundreds of times a second. Under the usual policy Linux interrupts
    the model's thread each time; under SCHED_BATCH the one that wakes up waits some milliseconds for a core. Its share
    of the cores stays the same.

    ``process`` is the id of another process, whose main thread is meant; 0 is the calling thread. Return False if
    nothing changed, because the operator chose another policy or the system refuses it.
    """
    try:
        if os.sched_getscheduler(process) != os.SCHED_OTHER:
            return False
        os.sched_setscheduler(process, os.SCHED_BATCH, os.sched_param(0))
    except OSError:  # a sandbox may refuse the call, and the process may have ended
        return False
    return True
