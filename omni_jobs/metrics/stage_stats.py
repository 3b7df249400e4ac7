"""``StageStats``: the counts of a stage as plain values, which workers record in SQL and samples keep.

A histogram is {upper bound: count}, each value counted once, in the bucket with the lowest bound that holds it. Buckets
without a value are left out, so that the values are few, and so that histograms of builds with other bounds add up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

BOUNDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 7200.0),
)
"""The upper bounds of the histograms' buckets, in seconds. One more bucket has none."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """How often a number of seconds lay in each bucket, and the sum of all."""

    counts: Mapping[str, int] = field(default_factory=dict)  # by the bucket's upper bound, as text
    sum_s: float = 0.0

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts.values())

    def quantile(self, share: float) -> float | None:
        """Return the seconds that ``share`` (0 to 1) of the values do not exceed; None without a value.

        It lies within the right bucket, where the values count as spread evenly. Of a bucket without an upper bound
        the lower one is returned.
        """
        wanted, seen = share * self.count, 0
        for bound, count in sorted((float(bound), count) for bound, count in self.counts.items()):
            if seen + count >= wanted:
                below = max((each for each in BOUNDS if each < bound), default=0.0)
                return below if math.isinf(bound) else below + (bound - below) * max(0.0, wanted - seen) / count
            seen += count
        return None

    def plus(self, other: Histogram) -> Histogram:
        """Return the histogram of the values of both."""
        return Histogram(_sum(self.counts, other.counts), round(self.sum_s + other.sum_s, 6))

    def since(self, earlier: Histogram) -> Histogram:
        """Return the values that came after ``earlier``, which is this histogram as it was then."""
        counts = {bound: count - earlier.counts.get(bound, 0) for bound, count in self.counts.items()}
        sum_s = round(self.sum_s - earlier.sum_s, 6)
        return Histogram({bound: count for bound, count in counts.items() if count}, sum_s)


@dataclass(frozen=True, slots=True)
class StageStats:
    """What a stage's workers have counted: since a worker's start, or within the time of a sample."""

    seconds: Mapping[str, Histogram] = field(default_factory=dict)  # by step: queue, load, run, store, first_token
    ended: Mapping[str, int] = field(default_factory=dict)  # attempts by result: completed, released, lost, or a code

    @property
    def ends(self) -> int:
        """The number of attempts that ended."""
        return sum(self.ended.values())

    def plus(self, other: StageStats) -> StageStats:
        """Return the sum of both."""
        names = sorted({*self.seconds, *other.seconds})
        none = Histogram()
        seconds = {name: self.seconds.get(name, none).plus(other.seconds.get(name, none)) for name in names}
        return StageStats(seconds, _sum(self.ended, other.ended))

    def since(self, earlier: StageStats) -> StageStats:
        """Return what was counted after ``earlier``, which is this worker's count as it was then.

        If a count is lower than it was, the worker began to count anew: then all of it came after.
        """
        none = Histogram()
        pairs = [(each, earlier.seconds.get(name, none)) for name, each in self.seconds.items()]
        if any(_has_fallen(now.counts, then.counts) for now, then in pairs) or _has_fallen(self.ended, earlier.ended):
            return self
        seconds = {name: each.since(earlier.seconds.get(name, none)) for name, each in self.seconds.items()}
        ended = {name: count - earlier.ended.get(name, 0) for name, count in self.ended.items()}
        return StageStats(
            {name: each for name, each in seconds.items() if each.counts},
            {name: count for name, count in ended.items() if count},
        )

    def to_json(self) -> dict[str, Any]:
        """Return what the rows keep: {seconds: {step: {counts, sum_s}}, ended: {result: count}}."""
        seconds = {name: {"counts": dict(each.counts), "sum_s": each.sum_s} for name, each in self.seconds.items()}
        return {"seconds": seconds, "ended": dict(self.ended)}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Return the stats that ``to_json`` wrote. What a later build has added to it is left out."""
        seconds = {name: Histogram(each["counts"], each["sum_s"]) for name, each in data.get("seconds", {}).items()}
        return cls(seconds, dict(data.get("ended", {})))


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """What a worker's row keeps of it: the counts since its start, and how it stands."""

    of_stage: StageStats = field(default_factory=StageStats)
    memory_bytes: int | None = None  # of its process; None: not known
    claimed_at: float | None = None  # when it claimed last, in seconds since 1970; None: never

    def to_json(self) -> dict[str, Any]:
        """Return what the row keeps: that of ``StageStats.to_json``, memory_bytes and claimed_at."""
        return {**self.of_stage.to_json(), "memory_bytes": self.memory_bytes, "claimed_at": self.claimed_at}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Return the stats that ``to_json`` wrote."""
        return cls(StageStats.of(data), data.get("memory_bytes"), data.get("claimed_at"))


def _has_fallen(now: Mapping[str, int], then: Mapping[str, int]) -> bool:
    return any(now.get(name, 0) < count for name, count in then.items())


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in sorted({*one, *other})}
