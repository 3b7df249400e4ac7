"""``rates_of``: how many attempts each stage ended in a second, and which share failed, by its samples."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from omni_jobs.jobs import StageName, StageSample
from omni_jobs.metrics.stage_stats import StageStats

_NO_FAILURES: Final = ("completed", "released", "job_cancelled")
_UNITS: Final = ((1.0, "s"), (60.0, "min"), (3600.0, "h"))


@dataclass(frozen=True, slots=True)
class Rate:
    """What a stage has done lately. ``per_s``: attempts that ended well, in a second; ``failed``: a share, 0 to 1."""

    per_s: float
    failed: float

    @property
    def text(self) -> str:
        """``per_s`` as a person says it: "12.3/s", "4.0/min", "2.5/h"."""
        fits = [(seconds, unit) for seconds, unit in _UNITS if self.per_s * seconds >= 1]
        seconds, unit = fits[0] if fits else _UNITS[-1]
        return f"{self.per_s * seconds:,.1f}/{unit}"


def rates_of(samples: Iterable[StageSample]) -> Mapping[StageName, Rate]:
    """Return the rate of each stage that has ended anything in these samples."""
    whole: dict[StageName, StageSample] = {}
    for sample in samples:
        known = whole.get(sample.name)
        whole[sample.name] = sample if known is None else known.plus(sample)
    rates = {}
    for name, sample in whole.items():
        if sample.stats.ends and sample.span_s:
            well = sample.stats.ended.get("completed", 0)
            rates[name] = Rate(well / sample.span_s, failed_of(sample.stats) / sample.stats.ends)
    return rates


def failed_of(stats: StageStats) -> int:
    """Return how many attempts have failed, also those that were lost; what was handed back or cancelled has not."""
    return sum(count for result, count in stats.ended.items() if result not in _NO_FAILURES)
