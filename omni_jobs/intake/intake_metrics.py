"""``IntakeMetrics``: counts what an API process has submitted and refused."""

from collections.abc import Sequence

from omni_jobs.errors import OmniJobsError
from omni_jobs.intake.intake_observer import IntakeObserver
from omni_jobs.jobs import SubmitResult
from omni_jobs.metrics.api_metrics import ApiMetrics
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.requests import Submission


class IntakeMetrics(IntakeObserver):
    """Counts submissions by pipeline and result, and retries by result."""

    def __init__(self, metrics: ApiMetrics, pipelines: Pipelines) -> None:
        """``pipelines``: those that are served; a request may name any, and its name is no label then."""
        self._metrics = metrics
        self._pipelines = pipelines

    def submitted(
        self, submissions: Sequence[Submission], results: Sequence[SubmitResult | OmniJobsError], seconds: float
    ) -> None:
        self._metrics.submit_s.observe(seconds)
        for submission, result in zip(submissions, results, strict=True):
            name = submission.request.model
            pipeline = name if name in self._pipelines else ""
            self._metrics.submits.labels(pipeline, _result(result)).inc()

    def retried(self, job_id: str, error: OmniJobsError | None) -> None:
        self._metrics.retries.labels("queued" if error is None else error.code).inc()


def _result(result: SubmitResult | OmniJobsError) -> str:
    if isinstance(result, OmniJobsError):
        return result.code
    return "created" if result.created else "known"
