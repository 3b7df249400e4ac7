"""``LostSpans``: a span for each attempt whose worker was lost, because the worker itself can send none."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from omni_jobs.errors import Quarantined, WorkerLost
from omni_jobs.jobs.observers.jobs_observer import JobsObserver
from omni_jobs.jobs.values import Change
from omni_jobs.tracing import attributes
from omni_jobs.tracing.spans import EndedSpan, Value, attempt_span

if TYPE_CHECKING:
    from omni_jobs.tracing.provider import SentSpans

_CODES = (WorkerLost.code, Quarantined.code)  # the second of a job's last worker


class LostSpans(JobsObserver):
    """Sends the span of an attempt as this process takes it from its worker. Its length is not known, and is 0."""

    def __init__(self, spans: SentSpans) -> None:
        self._spans = spans

    def changed(self, changes: Sequence[Change]) -> None:
        now = time.time()
        for change in changes:
            error, job = change.error, change.traceparent
            if error is None or job is None or change.stage_run_id is None or error["code"] not in _CODES:
                continue
            attempt = change.attempt or 0
            links = [attempt_span(job, change.stage_run_id, attempt - 1)] if attempt > 1 else []
            known: dict[str, Value] = {
                attributes.JOB: change.job_id,
                attributes.STAGE_RUN: change.stage_run_id,
                attributes.STAGE: change.stage or "",
                attributes.ATTEMPT: attempt,
                attributes.RESULT: "lost",
            }
            name = attempt_span(job, change.stage_run_id, attempt)
            what = {"code": error["code"], "message": error["message"]}
            title = f"stage run {change.stage}"
            span = EndedSpan(title, name, job, now, now, "consumer", known, links=links, error=what)
            self._spans.send(span)
