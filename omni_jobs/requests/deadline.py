"""A job's deadline: the header ``Cancel-After`` or the field ``expires_at``, after which the job stops by itself."""

import re
from datetime import datetime
from typing import Any

from omni_jobs.errors import InvalidRequest

LONGEST_S = 30 * 86_400.0
"""The longest time that a deadline may lie ahead, in seconds."""

_DURATION = re.compile(r"(?a)(\d{1,9}(?:\.\d{1,3})?)([smh]?)")
_SECONDS_OF = {"": 1, "s": 1, "m": 60, "h": 3600}
_RFC_3339 = re.compile(r"(?a)\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?P<zone>[Zz]|[+-]\d\d:\d\d)?")


def cancel_after(header: str) -> float:
    """Return the header's seconds, 1 s to 30 days, from the submit: ``90``, ``15m``, ``2h``. Raises InvalidRequest."""
    match = _DURATION.fullmatch(header.strip())
    seconds = 0.0 if match is None else float(match[1]) * _SECONDS_OF[match[2]]
    if not 1 <= seconds <= LONGEST_S:
        raise InvalidRequest(
            "must be 1 s to 30 days: a number of seconds, or like 90s, 15m, 2h (720h at most)", field="Cancel-After"
        )
    return seconds


def unix_seconds(value: Any) -> float | None:
    """Return the time that ``expires_at`` gives as a number or an RFC 3339 text; None for None. Raises ValueError."""
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 <= value < 1e11:  # larger numbers are milliseconds, or no date of any calendar
            raise ValueError("must be unix seconds")
        return float(value)
    match = _RFC_3339.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("must be an RFC 3339 time such as 2026-01-05T09:30:00Z, or unix seconds")
    if match["zone"] is None:
        raise ValueError("needs its zone: Z, or like +02:00")
    try:
        return datetime.fromisoformat(value.upper()).timestamp()
    except (ValueError, OverflowError):
        raise ValueError("is no time of any calendar") from None


def check_deadline(expires_at: float, now: float) -> None:
    """Raise InvalidRequest unless ``expires_at`` lies ahead of ``now`` by at most 30 days. Both are unix seconds."""
    if expires_at <= now:
        raise InvalidRequest("must be in the future", field="expires_at")
    if expires_at > now + LONGEST_S:
        raise InvalidRequest("must be within 30 days", field="expires_at")
