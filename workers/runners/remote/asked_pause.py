"""How long a server that refuses a request asks to be left alone: in its headers, in a field or in its words."""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from time import time

_MOST = 100  # characters of a value that is read
_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,4})?")
_UNITS: Mapping[str, float] = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_PART = re.compile(
    r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*"
    r"(ms|us|ns|seconds?|secs?|minutes?|mins?|hours?|hrs?|days?|[smhd])(?![a-z])",
    re.IGNORECASE,
)
_DURATION = re.compile(rf"(?:{_PART.pattern})+\s*", re.IGNORECASE)
_TRY_AGAIN = re.compile(rf"(?:again|retry|wait)\b[^.\d]{{0,30}}?((?:{_PART.pattern})+)", re.IGNORECASE)
_YEAR_S = 366 * 86_400.0
_IN_SECONDS = 1e11  # an instant above it is in milliseconds
_IN_MS = ("retry-after-ms", "x-ms-retry-after-ms")
_RESET = re.compile(r"(?:(?:x|anthropic)-)?ratelimit-(?:[\w-]+-)?reset(?:-[\w-]+)?")


def pause_of(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that an answer's headers ask to wait; None: they say nothing that can be understood.

    ``Retry-After`` is in seconds or a date. Without it the resets of those limits count of which nothing remains.
    """
    for name in _IN_MS:
        if (pause := _number(headers.get(name))) is not None:
            return max(pause / 1000, 0.0)
    if (pause := pause_in(headers.get("retry-after"))) is not None:
        return pause
    resets = [reset for name, value in headers.items() if (reset := _reset(name.lower(), value, headers)) is not None]
    return max(resets, default=None)


def pause_in(value: str | None) -> float | None:
    """Return the seconds to wait that a value says: a number of them, ``1m30s``, a date, or an instant since 1970."""
    number = _number(value)
    if number is not None:
        if number > _YEAR_S:
            number = (number / 1000 if number > _IN_SECONDS else number) - time()
        return max(number, 0.0)
    if value is None or len(value) > _MOST:
        return None
    if _DURATION.fullmatch(value):
        return _duration(value)
    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            date = parse(value.strip())
            return max((date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp() - time(), 0.0)
        except (ValueError, TypeError, OverflowError):
            continue
    return None


def pause_in_words(message: str) -> float | None:
    """Return the seconds after which a message asks to try again, such as OpenAI's ``try again in 6m0.5s``."""
    found = _TRY_AGAIN.search(message[:2000])
    return None if found is None else _duration(found[1])


def _reset(name: str, value: str, headers: Mapping[str, str]) -> float | None:
    """Return the seconds until a limit is lifted; None for a header of another kind, and of a limit with room left."""
    if not _RESET.fullmatch(name):
        return None
    remaining = _number(headers.get(name.replace("reset", "remaining")))
    return None if remaining is not None and remaining > 0 else pause_in(value)


def _number(value: str | None) -> float | None:
    if value is None or len(value) > _MOST or not _NUMBER.fullmatch(value.strip()):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _duration(value: str) -> float:
    total = 0.0
    for amount, unit in _PART.findall(value.lower()):
        total += float(amount) * _UNITS[unit if unit in _UNITS else unit[0]]
    return total
