"""``rendered``: HTML from a template, in which every value is text unless a template made it."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from jinja2 import Environment

_TENTH_S: Final = 0.1
_SHORT_S: Final = 60.0
_HOUR_S: Final = 3600.0
_DAY_S: Final = 86_400.0
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")


def rendered(template: str, **values: Any) -> str:
    """Return the HTML that a template makes of these values. Call it on a thread where there may be many."""
    return _environment().get_template(template).render(**values)


def span(seconds: float) -> str:
    """Return a time as a person says it: "40 ms", "0.4 s", "2 min 5 s", "3 h 20 min", "2 d 4 h"."""
    seconds = max(0.0, seconds)
    if seconds < _TENTH_S:
        return f"{1000 * seconds:.0f} ms"
    if seconds < _SHORT_S:
        return f"{seconds:.1f} s"
    large, small, words = (
        (_SHORT_S, 1.0, ("min", "s"))
        if seconds < _HOUR_S
        else (_HOUR_S, _SHORT_S, ("h", "min"))
        if seconds < _DAY_S
        else (_DAY_S, _HOUR_S, ("d", "h"))
    )
    return f"{int(seconds // large)} {words[0]} {int(seconds % large // small)} {words[1]}"


def bytes_text(count: int) -> str:
    """Return a number of bytes as a person says it: "812 B", "1.4 MB"."""
    power = min(len(_UNITS) - 1, int(math.log(count, 1000)) if count else 0)
    return f"{count} B" if not power else f"{count / 1000**power:.1f} {_UNITS[power]}"


def shortened(text: str, most: int) -> str:
    """Return a text of at most ``most`` characters; of a longer one its beginning and an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"


def clock(time: datetime, now: datetime | None = None) -> str:
    """Return a time in UTC: its hour, and its day as well unless that is today."""
    now = now or datetime.now(UTC)
    return f"{time:%H:%M:%S}" if time.date() == now.date() else f"{time:%Y-%m-%d %H:%M}"


def seconds_between(begin: datetime | None, end: datetime | None) -> float:
    """Return the seconds from one time to another; 0.0 if there is none, or if the clocks disagree."""
    return 0.0 if begin is None or end is None else max(0.0, (end - begin).total_seconds())


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return a number and its noun: "1 job", "1,200 jobs"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined  # loads long, and an API need not

    environment = Environment(
        loader=PackageLoader("omni_jobs.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: Sequence[Any] = (span, shortened, clock, bytes_text)
    environment.filters.update({each.__name__: each for each in filters})
    environment.globals.update(seconds_between=seconds_between, plural=plural)
    return environment
