"""``SubmitLog``: a log line for each job that an API server has made, which names the request that asked for it."""

import logging
from collections.abc import Sequence

from omni_jobs.errors import OmniJobsError
from omni_jobs.intake.intake_observer import IntakeObserver
from omni_jobs.jobs import SubmitResult
from omni_jobs.logs.records import Line, log_lines
from omni_jobs.requests import Submission
from omni_jobs.tracing.traceparent import trace_of

logger = logging.getLogger(__name__)

_NAMES = ("job", "pipeline")
_TRACED = (*_NAMES, "trace")


class SubmitLog(IntakeObserver):
    """Writes the lines of the submissions that came together in one record. A repeated submit makes no job."""

    def submitted(
        self, submissions: Sequence[Submission], results: Sequence[SubmitResult | OmniJobsError], seconds: float
    ) -> None:
        made = [
            _line(result, submission.request.model)
            for submission, result in zip(submissions, results, strict=True)
            if isinstance(result, SubmitResult) and result.created
        ]
        log_lines(logger, logging.INFO, made)


def _line(result: SubmitResult, pipeline: str) -> Line:
    if result.traceparent is None:
        return Line("job queued", _NAMES, (result.job_id, pipeline))
    return Line("job queued", _TRACED, (result.job_id, pipeline, trace_of(result.traceparent)))
