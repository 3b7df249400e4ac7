"""``SubmitLog``: a log line for each job that an API server has made, which names the request that asked for it."""

import asyncio
import logging
from collections.abc import Sequence
from contextvars import Context

from omni_jobs.errors import OmniJobsError
from omni_jobs.intake.intake_observer import IntakeObserver
from omni_jobs.jobs import SubmitResult
from omni_jobs.logs.context import request_id
from omni_jobs.logs.records import Line, log_lines
from omni_jobs.requests import Submission
from omni_jobs.tracing.traceparent import trace_of

logger = logging.getLogger(__name__)


class SubmitLog(IntakeObserver):
    """Writes the lines of the jobs of one transaction in one record, because a record costs as much as twenty lines.

    Their requests go on in the same turn of the event loop, and the lines are written in the next one. A repeated
    submit makes no job.
    """

    def __init__(self) -> None:
        self._waiting: list[Line] = []

    def submitted(
        self, submissions: Sequence[Submission], results: Sequence[SubmitResult | OmniJobsError], seconds: float
    ) -> None:
        made = [
            _line(result, submission.request.model)
            for submission, result in zip(submissions, results, strict=True)
            if isinstance(result, SubmitResult) and result.created
        ]
        if made and not self._waiting:
            asyncio.get_running_loop().call_soon(self._write, context=Context())  # of no request: each line has its own
        self._waiting += made

    def _write(self) -> None:
        lines, self._waiting = self._waiting, []
        log_lines(logger, logging.INFO, lines)


def _line(result: SubmitResult, pipeline: str) -> Line:
    fields = {"job": result.job_id, "pipeline": pipeline}
    if result.traceparent is not None:
        fields["trace"] = trace_of(result.traceparent)
    if (request := request_id.get()) is not None:
        fields["request"] = request
    return Line("job queued", tuple(fields), tuple(fields.values()))
