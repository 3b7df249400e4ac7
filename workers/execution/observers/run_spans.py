"""``RunSpans``: a span for each attempt of a stage run, with its steps in it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from omni_jobs.jobs import Claim, Completion
from omni_jobs.logs.line_filter import clean
from omni_jobs.tracing import attributes
from omni_jobs.tracing.spans import EndedSpan, attempt_span
from omni_jobs.tracing.traceparent import new_traceparent
from workers.execution.observers.run_observer import RunObserver, RunResult, StepTimes

if TYPE_CHECKING:
    from omni_jobs.tracing.provider import SentSpans


_SHORTEST_S = 0.001  # of a step that has a span


class RunSpans(RunObserver):
    """Sends the spans of an attempt once it is over: itself, linked to the attempt before, and its steps.

    The steps are queue, load, run, store and record. One that took less than a millisecond has no span of its own,
    because many jobs have many; its seconds stand at the attempt's as all do. The one in which the attempt ended
    has its error. Of an attempt that was lost nothing is sent: whoever took the stage run from this worker sends its
    span.
    """

    def __init__(self, spans: SentSpans, worker_id: str) -> None:
        self._spans = spans
        self._worker_id = worker_id
        self._completions: dict[int, Completion] = {}

    def stored(self, claim: Claim, times: StepTimes, completion: Completion) -> None:
        if claim.traceparent is not None:
            self._completions[claim.stage_run_id] = completion

    def ended(self, claim: Claim, times: StepTimes, result: RunResult) -> None:
        completion = self._completions.pop(claim.stage_run_id, None)
        job = claim.traceparent
        if job is None or result.kind == "lost":
            return
        error = None
        if result.error is not None:
            error = {"code": result.error.code, "message": clean(result.error.message)}
        own = attempt_span(job, claim.stage_run_id, claim.attempt)
        steps = list(_steps(claim, times))
        for name, began, ended in steps[:-1]:
            if ended - began >= _SHORTEST_S:
                self._spans.send(EndedSpan(name, new_traceparent(own), own, began, ended))
        name, began, ended = steps[-1]
        if error is not None or ended - began >= _SHORTEST_S:
            self._spans.send(EndedSpan(name, new_traceparent(own), own, began, ended, error=error))
        links = [attempt_span(job, claim.stage_run_id, claim.attempt - 1)] if claim.attempt > 1 else []
        known = self._attributes(claim, result, completion)
        known |= {attributes.STEPS[name]: round(ended - began, 6) for name, began, ended in steps}
        _, began, _ = steps[0]
        _, _, ended = steps[-1]
        self._spans.send(EndedSpan(f"stage run {claim.stage}", own, job, began, ended, "consumer", known, links, error))

    def _attributes(
        self, claim: Claim, result: RunResult, completion: Completion | None
    ) -> dict[str, str | int | float | list[str]]:
        parameters = claim.request.get("parameters", {}).get(claim.stage, {})
        known: dict[str, str | int | float | list[str]] = {
            attributes.JOB: claim.job_id,
            attributes.STAGE_RUN: claim.stage_run_id,
            attributes.STAGE: claim.stage,
            attributes.ATTEMPT: claim.attempt,
            attributes.WORKER: self._worker_id,
            attributes.RESULT: result.kind,
            **attributes.of_request(claim.pipeline, claim.seed, parameters),
        }
        if completion is not None:
            made = {name: completion.made[key] for key, name in attributes.MADE.items() if key in completion.made}
            known |= {**made, attributes.PAYLOAD_BYTES: completion.payload_bytes}
            if completion.finish_reason is not None:
                known[attributes.FINISH_REASONS] = [completion.finish_reason]
        return known


def _steps(claim: Claim, times: StepTimes) -> Iterator[tuple[str, float, float]]:
    """Yield the steps that the attempt took: name, begin and end in seconds since 1970.

    The queue lasted as long as the database's clock says, and all else is by this host's.
    """
    at = times.claimed_at
    yield "queue", at - claim.waited_s, at
    ended = at + times.ended_s if times.ended_s is not None else time.time()
    for name, passed in (("load", times.loaded_s), ("run", times.ran_s), ("store", times.stored_s)):
        if passed is None:
            yield name, at, ended
            return
        yield name, at, times.claimed_at + passed
        at = times.claimed_at + passed
    yield "record", at, ended
