"""``ApiMetrics``: what an API process counts and measures."""

from collections.abc import Callable

from prometheus_client import Counter, Gauge, Histogram

from omni_jobs.metrics.process_metrics import ProcessMetrics
from omni_jobs.metrics.stage_stats import BOUNDS


class ApiMetrics(ProcessMetrics):
    """The metrics of an API process."""

    def __init__(self) -> None:
        super().__init__("api")
        self.answers = Counter(
            "omni_jobs_http_answers",
            "Answers by status, and by error code where it is an error.",
            ["status", "code"],
            registry=self.registry,
        )
        self.submits = Counter(
            "omni_jobs_submits",
            "Submissions by pipeline and result: created, known, or the code of a refusal.",
            ["pipeline", "result"],
            registry=self.registry,
        )
        self.submit_s = Histogram(
            "omni_jobs_submit_seconds",
            "Seconds in the intake, of submissions that came together.",
            buckets=BOUNDS,
            registry=self.registry,
        )
        self.retries = Counter(
            "omni_jobs_job_retries", "Retries that users asked for, by result.", ["result"], registry=self.registry
        )
        self._watching = Gauge(
            "omni_jobs_watching_requests", "Requests that wait for a job or follow one.", registry=self.registry
        )

    def count_watching(self, count: Callable[[], int]) -> None:
        """Ask ``count`` for the number of requests that watch jobs, whenever the metrics are shown."""
        self._watching.set_function(count)
