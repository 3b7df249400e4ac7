"""``RunSpans``: a span for each attempt of a stage run, with its steps in it."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING

from omni_jobs.jobs import Claim, Completion
from omni_jobs.logs.line_filter import clean
from omni_jobs.tracing import attributes
from omni_jobs.tracing.spans import EndedSpan, Value, attempt_span
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
        links = [attempt_span(job, claim.stage_run_id, claim.attempt - 1)] if claim.attempt > 1 else []
        known: dict[str, Value] = {
            attributes.JOB: claim.job_id,
            attributes.STAGE_RUN: claim.stage_run_id,
            attributes.SEED: claim.seed,
        }
        if parameters := claim.request.get("parameters"):
            known |= attributes.of_parameters(parameters.get(claim.stage, {}))
        finish_reason = None
        if completion is not None:
            finish_reason = completion.finish_reason
            known[attributes.PAYLOAD_BYTES] = completion.payload_bytes
            known |= {attributes.MADE[name]: made for name, made in completion.made.items() if name in attributes.MADE}
        steps = _steps(claim, times)
        for name, began, ended in steps:
            known[attributes.STEPS[name]] = ended - began
        _, began, _ = steps[0]
        last, _, ended = steps[-1]
        shown = [each for each in steps if each[2] - each[1] >= _SHORTEST_S or (error is not None and each[0] == last)]
        span = EndedSpan(
            f"stage run {claim.stage}",
            own,
            job,
            began,
            ended,
            "consumer",
            known,
            _labels(claim.pipeline, claim.stage, claim.attempt, self._worker_id, result.kind, finish_reason),
            links,
            shown,
            error,
        )
        self._spans.send(span)


@lru_cache(256)
def _labels(
    pipeline: str, stage: str, attempt: int, worker_id: str, result: str, finish_reason: str | None
) -> tuple[tuple[str, Value], ...]:
    """Return the attributes that an attempt has in common with others."""
    labels: dict[str, Value] = {
        attributes.STAGE: stage,
        attributes.ATTEMPT: attempt,
        attributes.WORKER: worker_id,
        attributes.RESULT: result,
        attributes.OPERATION: "generate_content",
        attributes.PROVIDER: "omni_jobs",
        attributes.MODEL: pipeline,
    }
    if finish_reason is not None:
        labels[attributes.FINISH_REASONS] = (finish_reason,)
    return tuple(labels.items())


def _steps(claim: Claim, times: StepTimes) -> list[tuple[str, float, float]]:
    """Return the steps that the attempt took: name, begin and end in seconds since 1970.

    The queue lasted as long as the database's clock says, and all else is by this host's.
    """
    at = claimed_at = times.claimed_at
    steps = [("queue", at - claim.waited_s, at)]
    ended = at + times.ended_s if times.ended_s is not None else time.time()
    for name, passed in (("load", times.loaded_s), ("run", times.ran_s), ("store", times.stored_s)):
        if passed is None:
            return [*steps, (name, at, ended)]
        steps.append((name, at, claimed_at + passed))
        at = claimed_at + passed
    return [*steps, ("record", at, ended)]
