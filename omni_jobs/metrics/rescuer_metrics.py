"""``RescuerMetrics``: what a rescuer counts and measures."""

from collections.abc import Collection, Mapping
from typing import Final

from prometheus_client import Counter, Gauge

from omni_jobs.metrics.process_metrics import ProcessMetrics

STANDING: Final[Mapping[str, str]] = {
    "queued": "Stage runs that wait for a worker.",
    "running": "Stage runs that workers run.",
    "pending": "Stage runs that wait for earlier stages.",
    "workers": "Workers with a lease and a loaded engine.",
    "loading": "Workers that load their engine.",
}
"""How a stage stands in the database, with what each number is."""


class RescuerMetrics(ProcessMetrics):
    """The metrics of a rescuer's process."""

    def __init__(self) -> None:
        super().__init__("rescuer")
        self.freed = Counter(
            "omni_jobs_freed_stage_runs", "Stage runs taken back from lost workers.", registry=self.registry
        )
        self.expired = Counter("omni_jobs_expired_jobs", "Jobs whose time was over.", registry=self.registry)
        self.round_at = Gauge(
            "omni_jobs_rescuer_round_timestamp_seconds",
            "When the last round went well, in seconds since 1970.",
            registry=self.registry,
        )
        self.pruned = Counter("omni_jobs_pruned_jobs", "Jobs that the pruner deleted.", registry=self.registry)
        self.deleted = Counter(
            "omni_jobs_deleted_objects", "Objects that the pruner deleted.", ["kind"], registry=self.registry
        )
        for kind in ("garbage", "orphan"):
            self.deleted.labels(kind)
        self._standing = {
            name: Gauge(f"omni_jobs_stage_{name}", what, ["pipeline", "version", "stage"], registry=self.registry)
            for name, what in STANDING.items()
        }

    def stand(self, standings: Collection[tuple[tuple[str, str, str], object]]) -> None:
        """Show how stages stand: of each its (pipeline, version, stage), and a value with what STANDING names."""
        for name, gauge in self._standing.items():
            gauge.clear()
            for stage, standing in standings:
                gauge.labels(*stage).set(getattr(standing, name))
