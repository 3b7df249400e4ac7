"""``wanted_workers``: how many workers a stage should have. It reads and writes nothing, and knows nothing of before.

Whoever scales may ask any API server, at any time: the answer follows from what there is, and from the workers that
there are already. These are what keeps it from flapping.
"""

import math
from typing import NamedTuple

_FULL = 0.8
"""A worker is taken away only if the slots of the others would then be taken up to this share of them."""


class StageNeed(NamedTuple):
    """What a stage has to do, and the workers that it has for this."""

    waiting: int  # queued stage runs
    running: int  # stage runs, but for those that drained workers still hold
    serving: int  # workers
    loading: int  # workers that load their engine
    slots: float  # of one worker, but for those that only high jobs may take; above 0
    run_s: float | None  # how long a stage run takes; None: nobody knows yet
    is_paused: bool = False
    drained: int = 0  # workers that take nothing any more


def wanted_workers(need: StageNeed, wait_s: float) -> int:
    """Return the number of workers with which what waits now would be started within ``wait_s`` seconds.

    More than there are  when their slots are too few for what runs, and for what waits: a slot each, or fewer where
                         one takes several after the other within ``wait_s``.
    Fewer                only when those that stay would have room to spare, so that a load about the limit between
                         two numbers changes nothing.
    Of workers that load, each is taken for one that is busy with what waits. So none is started twice for the same
    stage runs, and none is stopped because others were quicker.
    A paused stage keeps the workers that it has, because nobody knows what will wait when it is resumed.
    Drained workers come on top, because whoever starts and stops workers counts them too: one that is drained takes no
    work from those that are wanted, and stays until it is stopped or resumed.
    """
    workers = need.serving + need.loading
    if need.is_paused:
        return workers + need.drained
    running = min(need.running, need.serving * need.slots)  # what more there is runs in slots for high jobs alone
    taken = running + max(need.waiting * _slot_share(need.run_s, wait_s), need.loading * need.slots)
    least = _whole(taken / need.slots)
    return need.drained + max(least, min(workers, _whole(taken / (need.slots * _FULL))))


def _whole(workers: float) -> int:
    """Return the next whole number, but for what rounding has added."""
    return math.ceil(workers - 1e-9)


def _slot_share(run_s: float | None, wait_s: float) -> float:
    """Return the share of a slot that a waiting stage run needs, so that all are started in time."""
    return 1.0 if run_s is None else min(1.0, run_s / wait_s)
