"""``wait_limit_s``: how long a request waits for its jobs."""

import re
from collections.abc import Iterable

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
