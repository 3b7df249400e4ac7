from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from omni_jobs.cli.tables import (
    children_table,
    duration_text,
    events_table,
    job_progress,
    job_summary,
    jobs_progress,
    jobs_table,
    size_text,
    stages_table,
    timeline,
)
from omni_jobs.stack.child import ChildState, ChildView
from omni_jobs.views import CalibrationView, EventView, JobView

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float | None) -> str | None:
    return None if seconds is None else (START + timedelta(seconds=seconds)).isoformat()


def stage(name: str, status: str, *times: float | None, **more: Any) -> dict[str, Any]:
    queued, started, finished = (*times, None, None, None)[:3]
    found = {"attempt": 1, "reason": None, "progress": None, "payload_bytes": None, "worker": None, "errors": []}
    found |= {"queued_at": at(queued), "started_at": at(started), "finished_at": at(finished)}
    return {"name": name, "status": status, **found, **more}


def job(status: str, stages: list[dict[str, Any]], finished: float | None = None, **more: Any) -> JobView:
    found: dict[str, Any] = {"id": "job-1", "pipeline": "p", "pipeline_version": "1", "modalities": ["text"]}
    found |= {"created_at": at(0), "started_at": at(0), "finished_at": at(finished), "result": None, "artifacts": []}
    found |= {"error": None, "metadata": {}, "seed": 0, "status": status, "stages": stages}
    return JobView.model_validate({**found, **more})


DONE = job(
    "completed",
    [
        stage("thinker", "succeeded", 0, 1, 5, payload_bytes=123_456),
        stage("talker", "succeeded", 5, 5, 10, payload_bytes=64),
    ],
    finished=10,
)


def shown(what: RenderableType) -> str:
    console = Console(width=100, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, ""), (-0.2, "0.0 s"), (0.44, "0.4 s"), (12.3, "12 s"), (185, "3 min 05 s")]
)
def test_seconds(seconds: float | None, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, ""), (0, "0 B"), (980, "980 B"), (12_345, "12.3 kB"), (4_500_000, "4.5 MB"), (3 * 10**12, "3000.0 GB")],
)
def test_bytes(count: int | None, text: str) -> None:
    assert size_text(count) == text


def test_the_timeline_puts_all_stages_on_one_scale() -> None:
    lines = [line.rstrip() for line in shown(timeline(DONE, width=10)).splitlines()]
    assert lines[0].split() == ["stage", "queued", "running", "payload", "0", "…", "10", "s"]
    assert lines[1] == "thinker   1.0 s    4.0 s  123.5 kB  ░████"
    assert lines[2] == "talker    0.0 s    5.0 s      64 B       █████"


def test_progress_shows_each_stage_and_the_text_so_far() -> None:
    progress = {"done": 12, "total": 48, "unit": "tokens", "text": "早上好\x1b[2J"}
    view = shown(
        job_progress(
            job("in_progress", [stage("thinker", "running", 0, 1, progress=progress), stage("talker", "pending")])
        )
    )
    assert "12/48 tokens" in view
    assert "talker   pending" in view
    assert "早上好�[2J" in view


WAITING = {
    "reason": "no_worker",
    "stage": "talker",
    "pipeline_version": "1",
    "pipeline_digest": "e7fe4140c44abf06",
    "message": "nobody has \x1b[2J it",
}
CUT = {"code": "cut_short", "stage": "talker", "message": "it stopped"}


def test_a_job_that_no_worker_may_take_says_so_wherever_it_is_shown() -> None:
    waits = job("in_progress", [stage("talker", "queued", 0, reason="no_worker")], waiting=WAITING)
    assert "no_worker: nobody has �[2J it" in shown(job_progress(waits))
    assert "no_worker: nobody has �[2J it" in shown(job_summary(waits))
    assert "in_progress (no_worker)" in " ".join(shown(jobs_table([waits])).split())


def test_a_job_that_waits_for_its_turn_says_for_how_long() -> None:
    estimate = {"low_s": 4.0, "high_s": 130.0, "basis": "the work before it"}
    turn = {**WAITING, "reason": "turn", "message": "3 before it", "position": 3, "estimate": estimate}
    waits = job("queued", [stage("talker", "queued", 0)], waiting=turn)
    for view in (job_progress(waits), job_summary(waits)):
        words = " ".join(shown(view).split())
        assert "turn: 3 before it; it starts in 4.0 s to 2 min 10 s, with 80 % probability" in words
    assert "turn" not in shown(jobs_table([waits]))


def test_stages_tell_their_pauses_and_how_many_estimates_held() -> None:
    held = CalibrationView(pipeline="p", stage="a", estimates=50, held=41, share=0.82)
    none = CalibrationView(pipeline="p", stage="b", estimates=0, held=0, share=None)
    title, first, second = shown(
        stages_table({("p", "a"): None, ("p", "b"): START}, {("p", "a"): held, ("p", "b"): none})
    ).splitlines()
    assert title.split("  ")[0] == "pipeline"
    assert first.split() == ["p", "a", "82%", "of", "50"]
    assert second.split()[:2] == ["p", "b"]
    assert len(second.split()) == 4  # a date and a time


def test_a_list_tells_which_jobs_were_cut() -> None:
    cut = job("completed", [stage("talker", "succeeded", 0, 1, 2)], finished=2, warnings=[CUT, CUT])
    assert "completed (cut_short)" in " ".join(shown(jobs_table([cut])).split())


def test_progress_tells_why_a_stage_runs_again() -> None:
    error = {"code": "worker_lost", "message": "it went away", "attempt": 1, "worker": "w", "at": at(3)}
    view = shown(job_progress(job("in_progress", [stage("thinker", "running", 0, 1, attempt=2, errors=[error])])))
    assert "attempt 2, after: it went away" in view
    progress = {"done": 40, "total": 51, "unit": "steps", "resumed_at": 38}
    resumed = stage("draw", "running", 0, 1, attempt=2, errors=[error], progress=progress)
    assert "attempt 2, from 38 steps on, after: it went away" in shown(job_progress(job("in_progress", [resumed])))


def test_a_failed_job_shows_its_error() -> None:
    failed = job("failed", [stage("thinker", "failed", 0, 1, 2)], error={"code": "model_error", "message": "[bold]no"})
    assert "model_error: [bold]no" in shown(job_summary(failed))


def test_every_attempt_that_failed_is_shown() -> None:
    errors = [
        {
            "code": "worker_lost",
            "message": "it went away",
            "retryable": True,
            "attempt": 1,
            "worker": "w-1",
            "at": at(3),
        },
        {"code": "model_error", "message": "坏\x1b[2J", "attempt": 2, "worker": "w-2", "at": at(4)},
    ]
    view = shown(job_summary(job("failed", [stage("thinker", "failed", 0, 1, 2, errors=errors)], retries=2)))
    assert "retried 2×" in view
    lines = [line.split() for line in view.splitlines() if "w-" in line]
    assert [(line[0], line[1], line[4]) for line in lines] == [("thinker", "1", "w-1"), ("thinker", "2", "w-2")]
    assert "worker_lost: it went away" in view
    assert "model_error: 坏�[2J" in view


def test_a_job_that_expired_says_whether_it_ever_started() -> None:
    error = {"code": "deadline_exceeded", "message": "late"}
    never = job("expired", [stage("thinker", "cancelled", 0)], error=error, started_at=None)
    assert "deadline_exceeded: late" in shown(job_summary(never))
    assert "it never started" in shown(job_summary(never))
    assert "it had started" in shown(job_summary(never.model_copy(update={"started_at": at(1)})))
    assert "deadline_exceeded" in shown(jobs_table([never]))


def test_a_deadline_that_is_ahead_is_shown() -> None:
    assert "expires at" in shown(job_summary(job("queued", [stage("thinker", "queued", 0)], expires_at=at(99))))


def test_events() -> None:
    event = {"id": 1, "type": "job.failed", "at": at(1), "data": {"error": {"code": "quarantined", "message": "no"}}}
    retried = {"id": 2, "type": "job.retried", "at": at(2), "data": {"stages": ["talker", "code2wav"], "wish": "x"}}
    view = shown(events_table([EventView.model_validate(event), EventView.model_validate(retried)]))
    assert "job.failed   quarantined: no" in view
    assert "job.retried  talker, code2wav" in view


def test_lists() -> None:
    view = shown(jobs_table([DONE]))
    assert "✔ thinker  ✔ talker" in view
    child = ChildView("worker echo.first", ChildState.RESTARTING, 7, 2.5, 3, Path("x.log"))
    assert "worker echo.first  restarting  2.5 s  restarted 3×" in shown(children_table([child]))


def test_the_progress_of_several_jobs() -> None:
    """Each stands above its stages, in the given order; one of which nothing is known yet is there, too."""
    half = {"done": 5, "total": 10, "unit": "steps", "text": None}
    running = job("in_progress", [stage("denoise", "running", 0, 1, progress=half)])
    lines = shown(jobs_progress({"job-2": None, "job-1": running, "job-3": DONE})).splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == ["job-2", "job-1", "job-3"]
    assert lines[1].split() == ["job-1", "p", "in_progress"]
    assert "━" in lines[2]
    assert "5/10 steps" in lines[2]
    assert [line.split()[1:3] for line in lines[4:]] == [["thinker", "succeeded"], ["talker", "succeeded"]]
