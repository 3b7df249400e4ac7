"""``ProcessMetrics``: the metrics that every process has, and the registry that ``/metrics`` shows."""

from importlib.metadata import version
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Info, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import generate_latest

ProcessKind = Literal["api", "worker", "rescuer"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of ``ProcessMetrics.text``."""


class ProcessMetrics:
    """The metrics of one process. Safe for threads.

    docs/observability.md says what each means.
    """

    def __init__(self, kind: ProcessKind) -> None:
        """Make the metrics, all 0, in a registry of their own: libraries have theirs in prometheus-client's."""
        disable_created_metrics()  # a further series for each, which nobody reads
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        process = Info("omni_jobs_process", "Which process this is.", registry=self.registry)
        process.info({"kind": kind, "version": version("omni-jobs")})
        self.database_faults = Counter(
            "omni_jobs_database_faults",
            "Transactions that the database did not take: tried again, or given up.",
            ["outcome"],
            registry=self.registry,
        )
        self.doorbells = Counter(
            "omni_jobs_doorbells", "Queues whose doorbell was rung, or not.", ["outcome"], registry=self.registry
        )
        for outcome in ("retried", "given_up"):
            self.database_faults.labels(outcome)
        for outcome in ("rung", "failed"):
            self.doorbells.labels(outcome)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format, of the type CONTENT_TYPE."""
        return generate_latest(self.registry)
