"""Estimates: in how long a waiting stage run starts, as an interval that holds in 80 % of the cases. Pure policy.

The *point estimate* says how long the work before a stage run takes: a number of stage runs have to end until it is
claimed, and the live workers end ``slots / run_s`` of them a second. Nobody knows how the load and the workers will
change, so the interval is made of what became of earlier estimates of the same stage (conformal prediction): its ends
are the point estimate times two quantiles of *actual ÷ expected*, the ``Factors``.

Which quantiles these are adapts as well, because the future differs from the past (Gibbs and Candès 2021, "Adaptive
conformal inference under distribution shift"). Each end has a *tail*, the share of waits that are to fall beyond it. A
wait that does fall beyond it makes the tail a little smaller, which moves the end outwards; each other wait makes it a
little larger. In the long run a tenth falls beyond each end, whatever the quantiles are worth.

    expected_s → interval → (the wait ends) → beyond → Tails.after → factors
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

COVERAGE = 0.8
"""The share of intervals that are to hold."""

RECENT = 300
"""The number of a stage's newest estimates of which its factors are made."""

FLOOR_S = 0.5
"""Added to both parts of a ratio, because a wait of moments depends on doorbells and polls, not on work before it."""

_POWERS = 8  # the longest step is 578 days

_TAIL = (1 - COVERAGE) / 2
_STEP = 0.005  # small, because a wait is known only when it has ended: larger steps overshoot meanwhile
_LEAST_TAIL, _GREATEST_TAIL = 0.002, 0.45
_PRIOR = (0.3, 0.6, 0.8, 1.0, 1.2, 1.6, 3.0)
"""Ratios as if seen before, so that the first intervals of a stage are neither points nor endless."""


class Interval(NamedTuple):
    """The time until a stage run starts, in seconds from now. It is at least ``low_s`` and at most ``high_s``."""

    low_s: float
    high_s: float


class Factors(NamedTuple):
    """The ends of an interval by the point estimate: low ≤ high."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Tails:
    """The shares of the ratios that are to lie below the low factor and above the high one."""

    low: float = _TAIL
    high: float = _TAIL

    def after(self, beyond: int) -> "Tails":
        """Return the tails after a wait that fell below its interval (-1), above it (1), or held it (0)."""
        return Tails(_adapted(self.low, beyond < 0), _adapted(self.high, beyond > 0))


def expected_s(before: float, free: int, slots: int, run_s: float) -> float:
    """Return the point estimate in seconds for a stage run with ``before`` others before it in turn order.

    ``slots`` (1 or more) are those of the live workers, of which ``free`` run nothing. A stage run takes ``run_s``.
    """
    return max(0.0, before + 1 - max(0, free)) * run_s / slots


def interval(point_s: float, factors: Factors) -> Interval:
    """Return the interval around a point estimate; ``SOON`` for one of 0."""
    if not point_s:
        return SOON
    low, high = ((point_s + FLOOR_S) * factor - FLOOR_S for factor in factors)
    return Interval(max(0.0, low), max(0.0, high))


def coarse(told: Interval) -> Interval:
    """Return the interval with its ends moved outwards to steps of 1, 2, 5, 10, 20, 50, … seconds, or 0."""
    steps = [digit * 10.0**power for power in range(_POWERS) for digit in (1, 2, 5)]
    low_s = max((step for step in steps if step <= told.low_s), default=0.0)
    return Interval(low_s, min((step for step in steps if step >= told.high_s), default=told.high_s))


def beyond(waited_s: float, told: Interval) -> int:
    """Return whether a wait was shorter than its interval (-1), longer (1) or within (0)."""
    return (waited_s > told.high_s) - (waited_s < told.low_s)


def ratio(waited_s: float, point_s: float) -> float:
    """Return *actual ÷ expected*."""
    return (waited_s + FLOOR_S) / (point_s + FLOOR_S)


def factors(ratios: Sequence[float], tails: Tails) -> Factors:
    """Return the factors for these ratios of the newest estimates, any number of them."""
    ordered = sorted([*_PRIOR, *ratios])
    return Factors(_quantile(ordered, tails.low), _quantile(ordered, 1 - tails.high))


def _adapted(tail: float, fell_beyond: bool) -> float:
    return min(max(tail + _STEP * (_TAIL - fell_beyond), _LEAST_TAIL), _GREATEST_TAIL)


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    lower = int(place)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (ordered[upper] - ordered[lower]) * (place - lower)


SOON = Interval(0.0, 1.0)
"""Told where a slot is free: in about a poll, by the default of OMNI_JOBS_POLL_S. It is no part of the calibration."""

FIRST_FACTORS = factors((), Tails())
"""Those of a stage of which nothing is known."""
