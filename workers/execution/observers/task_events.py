"""``TaskEvents``: tells Celery's monitors of each stage run as of a task, with no word of what its job asked for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

from omni_jobs.broker.doorbell import TASK
from omni_jobs.jobs import Claim
from omni_jobs.states import StageRunState
from workers.execution.observers.run_observer import RunObserver, RunResult, StepTimes

SHOWN_FIELDS = ("stage_run_id", "job_id", "pipeline", "stage", "attempt")
"""What Celery's tools show of a claim, as a task's keyword arguments."""


class EventSink(Protocol):
    """Takes events of Celery's. It returns at once and raises nothing."""

    @property
    def is_wanted(self) -> bool:
        """Whether somebody wants events; else none is made, because one costs more than an observer may."""

    def send(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Take an event of this type, with its fields."""


class TaskEvents(RunObserver):
    """Sends Celery's events of tasks; the id of a task is its stage run's, the same in all attempts.

        claimed     task-received
        loaded      task-started
        ended       task-succeeded
                    task-failed      for good
                    task-retried     the attempt failed or was handed back, and the stage run is queued again
                    task-revoked     its job was cancelled or expired

    Nothing is sent of a stage run that was lost to another worker, because that one sends its events.
    """

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink

    def claimed(self, claim: Claim, times: StepTimes) -> None:
        if not self._sink.is_wanted:
            return
        shown = {name: getattr(claim, name) for name in SHOWN_FIELDS}
        fields = {"name": TASK, "args": "()", "kwargs": repr(shown), "retries": claim.attempt - 1, "eta": None}
        self._tell("task-received", claim, fields)

    def loaded(self, claim: Claim, times: StepTimes) -> None:
        if self._sink.is_wanted:
            self._tell("task-started", claim, {})

    def ended(self, claim: Claim, times: StepTimes, result: RunResult) -> None:
        if self._sink.is_wanted and (event := _end(times, result)) is not None:
            self._tell(event[0], claim, event[1])

    def _tell(self, kind: str, claim: Claim, fields: Mapping[str, Any]) -> None:
        self._sink.send(kind, {"uuid": str(claim.stage_run_id), "timestamp": time.time(), **fields})


def _end(times: StepTimes, result: RunResult) -> tuple[str, Mapping[str, Any]] | None:
    """Return the type of the event of an end, and its own fields; None: there is none to send."""
    if result.kind == "completed":
        return "task-succeeded", {"result": "None", "runtime": times.ended_s}
    if result.state is StageRunState.CANCELLED:
        return "task-revoked", {"terminated": True, "signum": None, "expired": False}
    # Its message may hold words of the prompt; the job has them for those who may read it.
    code = "handed back" if result.error is None else result.error.code
    if result.kind == "failed" and result.state is not StageRunState.QUEUED:
        return "task-failed", {"exception": code, "traceback": None}
    return None if result.kind == "lost" else ("task-retried", {"exception": code, "traceback": None})
