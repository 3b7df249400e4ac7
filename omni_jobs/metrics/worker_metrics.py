"""``WorkerMetrics``: what a worker counts and measures of its stage.

The counts are plain numbers that the thread of the worker's event loop changes, and ``collect`` shows them: prometheus-
client's own counters take a lock and a search of all buckets for each change, a dozen for each stage run.
"""

import math
import resource
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Final

from prometheus_client import Metric
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

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

_LABELS = ("pipeline", "version", "stage")
_NAMES = tuple(f"{bound:g}" for bound in (*BOUNDS, math.inf))  # of the buckets, in a Histogram
_SHOWN = (*map(str, BOUNDS), "+Inf")  # of the buckets, for Prometheus
_STATM = Path("/proc/self/statm")
_MEMORY_STEP = 16 << 20


class WorkerMetrics(ProcessMetrics, Collector):
    """The metrics of a worker and of its engine, with its stage for labels. One thread changes them.

    Any thread may read them.
    """

    def __init__(self, pipeline: str, version: str, stage: str, slots: int) -> None:
        """``version``: the pipeline's. ``slots``: how many stage runs the worker may hold at once."""
        super().__init__("worker")
        self._is_of = (pipeline, version, stage)
        self._slots = slots
        self._seconds = {step: _Seconds() for step in STEPS}
        self._ended: dict[str, int] = {}
        self._made: dict[str, float] = {}
        self._repeated = self._loaded_bytes = self._stored_bytes = self._in_flight = 0
        self._renewed_at: float | None = None
        self._claimed_at: float | None = None
        self.registry.register(self)
        self.registry.register(EngineMetrics(*self._is_of))

    def claim(self, waited_s: float, *, repeated: bool = False) -> None:
        """Note that a stage run was claimed, now, after it stood in its line for so long. ``repeated``: once more."""
        self._in_flight += 1
        self._claimed_at = time.time()
        self._repeated += repeated
        self.observe("queue", waited_s)

    def load(self, size: int) -> None:
        """Note the bytes of earlier stages' payloads that a stage run has loaded."""
        self._loaded_bytes += size

    def observe(self, step: str, seconds: float) -> None:
        """Note how long a step of STEPS took. Clocks that were set count as no time."""
        self._seconds[step].add(seconds)

    def store(self, size: int, made: Mapping[str, float]) -> None:
        """Note the bytes that a stage run has stored, and what it took in and made.

        ``made`` has amounts by the fields of UsageView; a runner's others are left out.
        """
        self._stored_bytes += size
        for what, amount in made.items():
            if what in UsageView.model_fields and math.isfinite(amount) and amount > 0:
                self._made[what] = self._made.get(what, 0.0) + amount

    def end(self, result: str) -> None:
        """Note the end of an attempt: completed, released, lost, or the code of its error."""
        self._in_flight -= 1
        self._ended[result] = self._ended.get(result, 0) + 1

    def renew(self) -> None:
        """Note that the lease was renewed."""
        self._renewed_at = time.monotonic()

    def stats(self) -> WorkerStats:
        """Return what was counted since the start, the same counts that ``/metrics`` shows, and how the process stands.

        The memory is told to 16 MiB, so that of a worker that does nothing nothing changes.
        """
        steps = {step: each.histogram() for step, each in self._seconds.items() if any(each.counts)}
        claimed_at = None if self._claimed_at is None else round(self._claimed_at, 3)
        return WorkerStats(StageStats(steps, dict(self._ended)), _memory_bytes(), claimed_at)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the stage as they are now, for the registry."""
        for step, what in STEPS.items():
            histogram = HistogramMetricFamily(f"omni_jobs_stage_{step}_seconds", what, labels=_LABELS)
            seconds = self._seconds[step]
            buckets = list(zip(_SHOWN, accumulate(seconds.counts.copy()), strict=True))
            histogram.add_metric(self._is_of, buckets, seconds.sum_s)
            yield histogram
        yield self._counter("ended", "Attempts that ended here, by result or error code.", "result", self._ended)
        yield self._counter("repeated", "Claims of attempts after a stage run's first.", None, {"": self._repeated})
        moved = {"loaded": self._loaded_bytes, "stored": self._stored_bytes}
        yield self._counter("handoff_bytes", "Bytes of payloads and artifacts, loaded or stored.", "direction", moved)
        what = "What completed attempts took in and made, by the fields of usage."
        yield self._counter("made", what, "what", self._made)
        yield self._gauge("in_flight", "Stage runs that this worker holds.", self._in_flight)
        yield self._gauge("slots", "Stage runs that this worker may hold at once.", self._slots)
        age = math.nan if self._renewed_at is None else time.monotonic() - self._renewed_at
        yield self._gauge("lease_age_seconds", "Seconds since this worker renewed its lease.", age)

    def _counter(self, name: str, what: str, label: str | None, counts: Mapping[str, float]) -> Metric:
        more = () if label is None else (label,)
        counter = CounterMetricFamily(f"omni_jobs_stage_{name}", what, labels=(*_LABELS, *more))
        for value, count in dict(counts).items():
            counter.add_metric((*self._is_of, value) if more else self._is_of, count)
        return counter

    def _gauge(self, name: str, what: str, value: float) -> Metric:
        gauge = GaugeMetricFamily(f"omni_jobs_stage_{name}", what, labels=_LABELS)
        gauge.add_metric(self._is_of, value)
        return gauge


class _Seconds:
    """How often a number of seconds lay in each bucket, and the sum of all."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * len(_NAMES)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        if seconds < 0.0:
            seconds = 0.0
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum_s += seconds

    def histogram(self) -> Histogram:
        counts = zip(_NAMES, self.counts.copy(), strict=True)
        return Histogram({name: count for name, count in counts if count}, round(self.sum_s, 6))


def _memory_bytes() -> int | None:
    """Return how much of the host's memory this process has, to 16 MiB; None without /proc."""
    try:
        pages = int(_STATM.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * resource.getpagesize() // _MEMORY_STEP * _MEMORY_STEP
