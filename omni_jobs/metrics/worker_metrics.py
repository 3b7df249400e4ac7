"""``WorkerMetrics``: what a worker counts and measures of its stage."""

import math
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from prometheus_client import Counter, Gauge
from prometheus_client import Histogram as Buckets
from prometheus_client.samples import Sample

from omni_jobs.metrics.engine_metrics import EngineMetrics
from omni_jobs.metrics.process_metrics import ProcessMetrics
from omni_jobs.metrics.stage_stats import BOUNDS, Histogram, StageStats, WorkerStats
from omni_jobs.views import UsageView

STEPS: Final[Mapping[str, str]] = {
    "queue": "Seconds that a stage run stood in its stage's line before its claim, from when it was due.",
    "load": "Seconds from the claim until media, payloads and snapshot were read.",
    "run": "Seconds that the runner took.",
    "store": "Seconds until payload and artifacts were stored.",
    "first_token": "Seconds from the end of the load to the first token of a stage that makes tokens.",
}
"""The steps of a stage run that are measured, with what is measured."""

_LABELS = ("pipeline", "stage")
_STATM = Path("/proc/self/statm")
_MEMORY_STEP = 16 << 20


class WorkerMetrics(ProcessMetrics):
    """The metrics of a worker and of its engine, all with the labels ``pipeline`` and ``stage``."""

    def __init__(self, pipeline: str, stage: str, slots: int) -> None:
        """``slots``: how many stage runs the worker may hold at once."""
        super().__init__("worker")
        self.registry.register(EngineMetrics(pipeline, stage))
        self._is_of = (pipeline, stage)
        self._histograms = {
            step: Buckets(f"omni_jobs_stage_{step}_seconds", what, _LABELS, buckets=BOUNDS, registry=self.registry)
            for step, what in STEPS.items()
        }
        self._steps = {step: each.labels(*self._is_of) for step, each in self._histograms.items()}
        self._ended = self._counter("ended", "Attempts that ended here, by result or error code.", "result")
        self.repeated = self._counter("repeated", "Claims of attempts after a stage run's first.").labels(*self._is_of)
        self._bytes = self._counter("handoff_bytes", "Bytes of payloads and artifacts, loaded or stored.", "direction")
        self.loaded_bytes, self.stored_bytes = (self._bytes.labels(*self._is_of, name) for name in ("loaded", "stored"))
        self._made = self._counter("made", "What completed attempts took in and made, by the fields of usage.", "what")
        in_flight = self._gauge("in_flight", "Stage runs that this worker holds.").labels(*self._is_of)
        in_flight.set_function(lambda: self._in_flight)
        self._in_flight = 0
        self._ends: dict[str, Counter] = {}  # the counters of the results there were, because their look-up costs
        self._gauge("slots", "Stage runs that this worker may hold at once.").labels(*self._is_of).set(slots)
        self._renewed_at: float | None = None
        self._claimed_at: float | None = None
        lease = self._gauge("lease_age_seconds", "Seconds since this worker renewed its lease.")
        lease.labels(*self._is_of).set_function(self._lease_age)

    def observe(self, step: str, seconds: float) -> None:
        """Note how long a step of STEPS took. Clocks that were set count as no time."""
        self._steps[step].observe(max(0.0, seconds))

    def end(self, result: str) -> None:
        """Note the end of an attempt: completed, released, lost, or the code of its error."""
        self._in_flight -= 1
        counter = self._ends.get(result)
        if counter is None:
            counter = self._ends[result] = self._ended.labels(*self._is_of, result)
        counter.inc()

    def make(self, made: Mapping[str, float]) -> None:
        """Note what an attempt took in and made: amounts by the fields of UsageView; a runner's others are left out."""
        for what, amount in made.items():
            if what in UsageView.model_fields and math.isfinite(amount) and amount > 0:
                self._made.labels(*self._is_of, what).inc(amount)

    def renew(self) -> None:
        """Note that the lease was renewed."""
        self._renewed_at = time.monotonic()

    def claim(self) -> None:
        """Note that a stage run was claimed, now. One thread claims and ends."""
        self._in_flight += 1
        self._claimed_at = round(time.time(), 3)

    def stats(self) -> WorkerStats:
        """Return what was counted since the start, the same counts that ``/metrics`` shows, and how the process stands.

        The memory is told to 16 MiB, so that of a worker that does nothing nothing changes.
        """
        ended = {sample.labels["result"]: int(sample.value) for sample in _samples(self._ended, "_total")}
        steps = {step: each for step in STEPS if (each := self._histogram(step)).counts}
        return WorkerStats(StageStats(steps, ended), _memory_bytes(), self._claimed_at)

    def _histogram(self, step: str) -> Histogram:
        counts, below = {}, 0
        for sample in _samples(self._histograms[step], "_bucket"):
            up_to, bound = int(sample.value), sample.labels["le"]
            if up_to > below:
                counts[f"{float(bound):g}"] = up_to - below
            below = up_to
        [total] = _samples(self._histograms[step], "_sum")
        return Histogram(counts, round(total.value, 6))

    def _lease_age(self) -> float:
        return math.nan if self._renewed_at is None else time.monotonic() - self._renewed_at

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"omni_jobs_stage_{name}", what, [*_LABELS, *labels], registry=self.registry)

    def _gauge(self, name: str, what: str) -> Gauge:
        return Gauge(f"omni_jobs_stage_{name}", what, _LABELS, registry=self.registry)


def _memory_bytes() -> int | None:
    """Return how much of the host's memory this process has, to 16 MiB; None without /proc."""
    try:
        pages = int(_STATM.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * resource.getpagesize() // _MEMORY_STEP * _MEMORY_STEP


def _samples(metric: Counter | Buckets, end: str) -> list[Sample]:
    return [sample for family in metric.collect() for sample in family.samples if sample.name.endswith(end)]
