"""``RescuerMetrics``: what a rescuer counts and measures."""

from prometheus_client import Counter, Gauge

from omni_jobs.metrics.process_metrics import ProcessMetrics


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
