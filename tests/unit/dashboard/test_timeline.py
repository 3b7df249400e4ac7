"""The timeline of a job: bars to scale, whatever its stages have come to."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from omni_jobs.dashboard.timeline import StageLine, timeline_of, words_of
from omni_jobs.states import JobState, StageRunState
from omni_jobs.views import AttemptErrorView, JobView, ProgressView, StageRunView

BEGIN = datetime(2026, 11, 27, 9, 0, tzinfo=UTC)


def at(seconds: float | None) -> datetime | None:
    return None if seconds is None else BEGIN + timedelta(seconds=seconds)


def stage(
    status: str, queued: float | None, started: float | None, finished: float | None, failed_at: tuple[float, ...] = ()
) -> StageRunView:
    errors = [
        AttemptErrorView(code="model_error", message="x", attempt=n, worker="w", at=BEGIN + timedelta(seconds=each))
        for n, each in enumerate(failed_at, 1)
    ]
    return StageRunView(
        name="first", status=StageRunState(status), attempt=len(errors) + 1, reason=None, queued_at=at(queued),
        started_at=at(started), finished_at=at(finished), progress=None, payload_bytes=None, worker="w", errors=errors,
    )  # fmt: skip


def job(*stages: StageRunView, finished: float | None = None) -> JobView:
    return JobView(
        id="job-1", pipeline="echo", pipeline_version="1", status=JobState.IN_PROGRESS, created_at=BEGIN,
        started_at=None, finished_at=at(finished), modalities=["text"], stages=list(stages), result=None, artifacts=[],
        error=None, metadata={}, seed=1,
    )  # fmt: skip


def bars(line: StageLine) -> list[tuple[str, float, float]]:
    return [(bar.kind, bar.left, bar.width) for bar in line.bars]


@pytest.mark.parametrize(
    ("its", "expected"),
    [
        (stage("pending", None, None, None), []),
        (stage("queued", 0, None, None), [("waited", 0, 100)]),
        (stage("running", 0, 20, None), [("waited", 0, 20), ("running", 20, 80)]),
        (stage("succeeded", 0, 20, 60), [("waited", 0, 20), ("ran", 20, 40)]),
        (stage("cancelled", 0, 20, 60), [("waited", 0, 20), ("cancelled", 20, 40)]),
        (stage("cancelled", 0, None, 60), [("waited", 0, 60)]),
        (stage("failed", 0, 20, 60, (60,)), [("failed", 0, 60)]),
        (stage("queued", 0, 20, None, (60,)), [("failed", 0, 60), ("waited", 60, 40)]),
        (
            stage("succeeded", 0, 70, 90, (30, 60)),
            [("failed", 0, 30), ("failed", 30, 30), ("waited", 60, 10), ("ran", 70, 20)],
        ),
    ],
)
def test_each_time_of_a_stage_is_a_bar(its: StageRunView, expected: list[tuple[str, float, float]]) -> None:
    [line] = timeline_of(job(its), BEGIN + timedelta(seconds=100)).lines
    assert bars(line) == expected


def test_a_failed_attempt_begins_where_it_began() -> None:
    its = stage("succeeded", 0, 70, 90, (30, 60))
    first, second = its.errors
    errors = [first.model_copy(update={"started_at": at(10)}), second.model_copy(update={"started_at": at(45)})]
    [line] = timeline_of(job(its.model_copy(update={"errors": errors})), BEGIN + timedelta(seconds=100)).lines
    assert bars(line) == [
        ("waited", 0, 10), ("failed", 10, 20), ("waited", 30, 15), ("failed", 45, 15), ("waited", 60, 10),
        ("ran", 70, 20),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("its", "steps", "expected"),
    [
        (
            stage("succeeded", 0, 20, 60),
            (5, 30, 4),
            [("waited", 0, 20), ("loaded", 20, 5), ("ran", 25, 30), ("stored", 55, 5)],  # its end is recorded last
        ),
        (stage("running", 0, 20, None), (5,), [("waited", 0, 20), ("loaded", 20, 5), ("running", 25, 75)]),
        (stage("cancelled", 0, 20, 60), (5, 35), [("waited", 0, 20), ("loaded", 20, 5), ("cancelled", 25, 35)]),
        (stage("cancelled", 0, 20, 60), (40,), [("waited", 0, 20), ("cancelled", 20, 40)]),
        # Clocks disagree: no step leaves its attempt.
        (
            stage("succeeded", 0, 20, 60),
            (50, 30, 4),
            [("waited", 0, 20), ("loaded", 20, 40), ("ran", 60, 0.3), ("stored", 60, 0.3)],
        ),
    ],
)
def test_an_attempt_is_drawn_by_its_steps(
    its: StageRunView, steps: tuple[float, ...], expected: list[tuple[str, float, float]]
) -> None:
    known = dict(zip(("load_s", "run_s", "store_s"), steps, strict=False))
    [line] = timeline_of(job(its.model_copy(update=known)), BEGIN + timedelta(seconds=100)).lines
    assert bars(line) == expected


@pytest.mark.parametrize(
    ("steps", "expected", "title"),
    [
        ({}, [("failed", 0, 60)], "attempt 1 failed"),
        ({"load_s": 60}, [("failed", 0, 60)], "attempt 1 failed while it loaded"),
        ({"load_s": 10, "run_s": 50}, [("loaded", 0, 10), ("failed", 10, 50)], "attempt 1 failed while it ran"),
        (
            {"load_s": 10, "run_s": 40, "store_s": 9},
            [("loaded", 0, 10), ("ran", 10, 40), ("failed", 50, 10)],
            "attempt 1 failed while it stored",
        ),
    ],
)
def test_a_failed_attempt_shows_in_which_step_it_failed(
    steps: dict[str, float], expected: list[tuple[str, float, float]], title: str
) -> None:
    its = stage("failed", 0, 0, 60, (60,))
    [error] = its.errors
    its = its.model_copy(update={"errors": [error.model_copy(update={**steps, "started_at": BEGIN})]})
    [line] = timeline_of(job(its), BEGIN + timedelta(seconds=100)).lines
    assert bars(line) == expected
    assert line.bars[-1].title == title


def test_what_was_short_is_seen_and_nothing_leaves_the_scale() -> None:
    its = stage("succeeded", -5, 99.9999, 200)  # clocks disagree
    [line] = timeline_of(job(its, finished=100), BEGIN).lines
    for bar in line.bars:
        assert bar.width >= 0.3
        assert 0 <= bar.left <= bar.left + bar.width <= 100.01


def test_the_words_beside_a_line_tell_how_it_went() -> None:
    assert words_of(stage("pending", None, None, None)) == []
    assert words_of(stage("failed", 0, 1, 2, (1.0, 2.0))) == ["attempt 3"]
    its = stage("running", 0, 20, None)
    progress = ProgressView(done=1200, total=5000, unit="tokens", resumed_at=200)
    assert words_of(its.model_copy(update={"progress": progress})) == ["1,200 / 5,000 tokens", "resumed at 200"]
    its = stage("succeeded", 0, 20, 60).model_copy(update={"progress": progress, "payload_bytes": 2_000})
    assert words_of(its) == ["40.0 s", "1,200 tokens", "resumed at 200", "hands on 2.0 kB"]
    one = {unit: ProgressView(done=1, total=1, unit=unit) for unit in ("sentences", "ms")}
    shown = [words_of(its.model_copy(update={"progress": progress}))[1] for progress in one.values()]
    assert shown == ["1 sentence", "1 ms"]
    assert words_of(stage("queued", 0, None, None).model_copy(update={"reason": "no_worker"})) == ["no worker"]


@pytest.mark.parametrize("seconds", [0.0, 0.05, 1, 7, 100, 3000, 90_000, 30 * 86_400.0])
def test_a_scale_has_few_ticks(seconds: float) -> None:
    timeline = timeline_of(job(finished=seconds), BEGIN)
    ticks: Any = timeline.ticks
    assert 1 <= len(ticks) <= 8
    assert ticks[0] == (0, 0)
    assert all(0 <= left <= 100 for left, _ in ticks)
