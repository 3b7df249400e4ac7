"""How long a request waits for its jobs, and how."""

import re
import time
from collections.abc import Iterable

from omni_jobs.http.places import Connection
from omni_jobs.watch.watch import Watch

_SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")
_MARGIN = 0.1  # of the time for which the client waits,
_MOST_MARGIN_S = 10.0  # so that it gets the answer, and not its own error, after which it would send the request again


def wait_limit_s(most_s: float, timeouts: Iterable[str | None]) -> float:
    """Return for how many seconds a request may wait: ``most_s``, or less where its client waits for less.

    ``timeouts``: the seconds for which it says that it waits, Python's stock client in ``x-stainless-read-timeout``,
    npm's in ``x-stainless-timeout``. A text that is no such number says nothing.
    """
    said = [float(each) for each in timeouts if each is not None and _SECONDS.fullmatch(each)]
    return min([most_s, *(client_s - min(_MOST_MARGIN_S, _MARGIN * client_s) for client_s in said)])


async def wait_for_ends(
    watch: Watch, job_ids: Iterable[str], within_s: float, counts_for: str | None, connection: Connection | None
) -> None:
    """Wait until all these jobs have ended, ``within_s`` at the longest, or for any reason for which ``Watch`` ends.

    One is watched after the other, because a request counts as one that watches, and they run side by side anyway.
    """
    ends_at = time.monotonic() + within_s
    for job_id in job_ids:
        left_s = ends_at - time.monotonic()
        if left_s <= 0 or not await watch.until_ended(job_id, left_s, counts_for, connection):
            return
