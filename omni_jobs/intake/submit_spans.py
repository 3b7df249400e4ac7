"""``SubmitSpans``: a span for the submit of each job, which its stage runs' spans are in."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from omni_jobs.errors import OmniJobsError
from omni_jobs.intake.intake_observer import IntakeObserver
from omni_jobs.jobs import SubmitResult
from omni_jobs.requests import Submission
from omni_jobs.tracing import attributes
from omni_jobs.tracing.spans import EndedSpan
from omni_jobs.tracing.traceparent import of_request

if TYPE_CHECKING:
    from omni_jobs.tracing.provider import SentSpans


class SubmitSpans(IntakeObserver):
    """Sends the span of each job that was made, in that of its client, if it named one."""

    def __init__(self, spans: SentSpans) -> None:
        self._spans = spans

    def submitted(
        self, submissions: Sequence[Submission], results: Sequence[SubmitResult | OmniJobsError], seconds: float
    ) -> None:
        ended = time.time()
        for submission, result in zip(submissions, results, strict=True):
            if isinstance(result, SubmitResult) and result.traceparent is not None:
                model = submission.request.model
                span = EndedSpan(
                    f"submit {model}",
                    result.traceparent,
                    of_request.get(),
                    ended - seconds,
                    ended,
                    kind="server",
                    attributes={attributes.JOB: result.job_id, attributes.MODEL: model},
                )
                self._spans.send(span)
