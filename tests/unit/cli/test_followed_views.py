"""The view of a job, and what the events of its stream say of a stage run's progress."""

from datetime import UTC, datetime
from typing import Any

import pytest

from omni_jobs.cli.followed_views import with_progress
from omni_jobs.client import JobEvent
from omni_jobs.states import JobState, StageRunState
from omni_jobs.views import JobView, ProgressView, StageRunView

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PICTURE = "data:image/jpeg;base64,AA=="


def stage(**more: Any) -> StageRunView:
    run = StageRunView(
        name="a",
        status=StageRunState.RUNNING,
        attempt=2,
        reason=None,
        queued_at=AT,
        started_at=AT,
        finished_at=None,
        progress=ProgressView(done=3, total=9, unit="tokens", text="abc"),
        payload_bytes=None,
        worker="w",
        errors=[],
    )
    return run.model_copy(update=more)


def job(run: StageRunView) -> JobView:
    return JobView(
        id="job-1",
        pipeline="p",
        pipeline_version="1",
        status=JobState.IN_PROGRESS,
        created_at=AT,
        started_at=AT,
        finished_at=None,
        modalities=["text"],
        stages=[run, stage(name="b")],
        result=None,
        artifacts=[],
        error=None,
        metadata={},
        seed=1,
    )


def event(name: str, attempt: int = 2, **data: Any) -> JobEvent:
    return JobEvent(name, {"stage": "a", "attempt": attempt, **data})


def progress(done: int, attempt: int = 2) -> JobEvent:
    return event("progress", attempt, done=done, total=9, unit="tokens", resumed_at=None)


@pytest.mark.parametrize(
    ("run", "told", "after"),
    [
        (stage(), progress(4), {"done": 4}),
        (stage(), progress(2), {}),  # the view is newer
        (stage(), progress(4, attempt=1), {}),
        (stage(status=StageRunState.SUCCEEDED), progress(4), {}),
        (stage(), event("text", offset=3, text="de"), {"text": "abcde"}),
        (stage(), event("text", offset=2, text="cde"), {"text": "abcde"}),
        (stage(), event("text", offset=0, text="ab"), {}),  # the view is newer
        (stage(), event("picture", picture=PICTURE), {"picture": PICTURE}),
    ],
)
def test_an_event_advances_its_stage_run_alone(run: StageRunView, told: JobEvent, after: dict[str, Any]) -> None:
    before = job(run)
    found = with_progress(before, told)
    assert found.stages[0].progress == ProgressView(**{"done": 3, "total": 9, "unit": "tokens", "text": "abc", **after})
    assert found.stages[1] == before.stages[1]


def test_the_first_event_of_an_attempt_begins_its_progress() -> None:
    found = with_progress(job(stage(progress=None)), event("text", offset=0, text="a"))
    assert found.stages[0].progress == ProgressView(done=0, total=None, unit="", text="a")
