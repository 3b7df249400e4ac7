"""What Celery's monitors are told of stage runs."""

from collections.abc import Mapping
from typing import Any

import pytest

from omni_jobs.errors import EngineDead, ModelError
from omni_jobs.jobs import Claim, Outcome
from omni_jobs.states import StageRunState
from workers.execution.observers.run_observer import COMPLETED, RELEASED, RunResult, StepTimes
from workers.execution.observers.task_events import TaskEvents
from workers.execution.run_ends import result_of

QUEUED, CANCELLED, FAILED = StageRunState.QUEUED, StageRunState.CANCELLED, StageRunState.FAILED
CLAIM = Claim(
    stage_run_id=7,
    job_id="job-1",
    stage="first",
    attempt=2,
    pipeline="echo",
    request={"messages": [{"role": "user", "content": "a secret"}]},
    media=[{"key": "a secret"}],
    seed=1,
    upstream={"x": b"a secret"},
    has_successors=True,
    alone=False,
)


class Told:
    def __init__(self, is_wanted: bool = True) -> None:
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self.is_wanted = is_wanted
        self.observer = TaskEvents(self)

    def send(self, kind: str, fields: Mapping[str, Any]) -> None:
        self.events.append((kind, fields))

    def end(self, result: RunResult) -> list[tuple[str, Mapping[str, Any]]]:
        self.observer.ended(CLAIM, StepTimes(1.0, ended_s=2.5), result)
        return [
            (kind, {name: value for name, value in fields.items() if name not in ("uuid", "timestamp")})
            for kind, fields in self.events
        ]


def test_a_stage_run_is_a_task_by_its_own_id_with_its_job_and_no_word_of_its_request() -> None:
    told = Told()
    told.observer.claimed(CLAIM, StepTimes(1.0))
    told.observer.loaded(CLAIM, StepTimes(1.0, loaded_s=0.1))
    told.end(COMPLETED)
    assert [kind for kind, _ in told.events] == ["task-received", "task-started", "task-succeeded"]
    assert {fields["uuid"] for _, fields in told.events} == {"7"}
    received, succeeded = told.events[0][1], told.events[2][1]
    shown = {"stage_run_id": 7, "job_id": "job-1", "pipeline": "echo", "stage": "first", "attempt": 2}
    assert (received["kwargs"], received["retries"], succeeded["runtime"]) == (repr(shown), 1, 2.5)
    assert "secret" not in repr(told.events)


def test_nothing_is_told_while_nobody_wants_it() -> None:
    told = Told(is_wanted=False)
    told.observer.claimed(CLAIM, StepTimes(1.0))
    told.observer.loaded(CLAIM, StepTimes(1.0, loaded_s=0.1))
    assert told.end(COMPLETED) == []


@pytest.mark.parametrize(
    ("result", "outcome", "event"),
    [
        (RunResult("failed", ModelError("a secret")), Outcome(True, state=FAILED), ("task-failed", "model_error")),
        (RunResult("failed", EngineDead()), Outcome(True, state=QUEUED), ("task-retried", "engine_dead")),
        (RELEASED, Outcome(True, state=QUEUED), ("task-retried", "handed back")),
        (RELEASED, Outcome(True, state=CANCELLED), ("task-revoked", None)),
        (RunResult("failed", ModelError("x")), Outcome(True, state=CANCELLED), ("task-revoked", None)),
        (COMPLETED, Outcome(False, state=CANCELLED), ("task-revoked", None)),
        (COMPLETED, Outcome(False, state=StageRunState.RUNNING), None),
        (COMPLETED, Outcome(False), None),
    ],
)
def test_each_end_is_told_as_what_became_of_the_stage_run(
    result: RunResult, outcome: Outcome, event: tuple[str, str | None] | None
) -> None:
    told = Told().end(result_of(outcome, result))
    assert [(kind, fields.get("exception")) for kind, fields in told] == ([] if event is None else [event])
    assert "secret" not in repr(told)
