"""What a job is as a video: its status, progress, size, and when to ask again."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_jobs.jobs import VideoJob
from omni_jobs.openai.videos.answer import (
    POLLS_MS,
    STATUSES,
    VideoOfJob,
    job_id_of,
    poll_after_ms,
    video_id_of,
    video_of,
)
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.states import JobState, StageRunState
from omni_jobs.views import ErrorView, EstimateView, JobView, ProgressView, StageRunView, WaitingView

NOW = datetime(2026, 11, 27, 16, tzinfo=UTC)
JOB_ID = "job-" + "0a" * 16
PIPELINE = load_pipelines(Path(__file__).parents[3] / "stage_configs")["echo_media"]
ERROR = ErrorView(code="deadline_exceeded", message="it is late", field="expires_at")
REMOTE = Pipeline.model_validate(
    {
        "name": "filmed",
        "version": "1",
        "stages": {
            "film": {
                "name": "film",
                "kind": "remote",
                "processor": "remote_text",
                "produces": "pixels",
                "engine": {"server": "local", "model": "wan", "endpoint": "videos"},
                "parameters": {"num_frames": 48, "fps": 24},
            }
        },
        "outputs": {"video": {"stage": "film"}},
    }
)


def run(state: StageRunState, name: str = "video", **more: Any) -> StageRunView:
    others = dict.fromkeys(("reason", "queued_at", "started_at", "finished_at", "progress", "payload_bytes", "worker"))
    return StageRunView(**{**others, "name": name, "status": state, "attempt": 1, "errors": [], **more})


def job(state: JobState, *runs: StageRunView, **more: Any) -> JobView:
    others = dict.fromkeys(("started_at", "finished_at", "result", "error"))
    return JobView(
        **{
            **others,
            "id": JOB_ID,
            "pipeline": "echo_media",
            "pipeline_version": "1",
            "status": state,
            "created_at": NOW,
            "modalities": ["video"],
            "stages": runs,
            "artifacts": [],
            "metadata": {},
            "seed": 7,
            **more,
        }
    )


def progress(done: int, total: int | None, resumed_at: int | None = None) -> ProgressView:
    return ProgressView(done=done, total=total, unit="steps", resumed_at=resumed_at)


def shown(made: JobView, request: dict[str, Any] | None = None, pipeline: Pipeline | None = PIPELINE) -> VideoOfJob:
    asked = {"messages": [{"role": "user", "content": "a boat"}], "parameters": {}} if request is None else request
    return video_of(VideoJob(made, asked), pipeline, 3600)


@pytest.mark.parametrize(
    ("state", "error", "status", "code"),
    [
        (JobState.QUEUED, None, "queued", None),
        (JobState.IN_PROGRESS, None, "in_progress", None),
        (JobState.CANCELLING, None, "in_progress", None),
        (JobState.COMPLETED, None, "completed", None),
        (JobState.FAILED, ErrorView(code="model_error", message="it broke"), "failed", "model_error"),
        (JobState.FAILED, ErrorView(code="of_a_later_build", message="it broke"), "failed", "internal"),
        (JobState.FAILED, None, "failed", "internal"),
        (JobState.CANCELLED, None, "failed", "job_cancelled"),
        (JobState.EXPIRED, ERROR, "failed", "deadline_exceeded"),
    ],
)
def test_each_state_has_a_status(state: JobState, error: ErrorView | None, status: str, code: str | None) -> None:
    video = shown(job(state, error=error, finished_at=NOW if state.is_final else None))
    assert video.status == status
    assert (None if video.error is None else video.error.code) == code
    assert (video.completed_at is not None) == (video.expires_at is not None) == (status == "completed")


def test_no_state_is_left_out_and_none_that_goes_on_ends_a_poll() -> None:
    assert set(STATUSES) == set(JobState)
    assert all((STATUSES[state] in ("completed", "failed")) == state.is_final for state in JobState)


def test_a_completed_video_says_when_it_goes() -> None:
    video = shown(job(JobState.COMPLETED, finished_at=NOW + timedelta(seconds=9)))
    assert (video.completed_at, video.expires_at) == (NOW.timestamp() + 9, NOW.timestamp() + 9 + 3600)
    assert (video.id, video.created_at) == ("video_" + "0a" * 16, NOW.timestamp())
    assert job_id_of(video.id) == JOB_ID
    assert video_id_of(JOB_ID) == video.id


states = st.sampled_from(StageRunState)
counts = st.integers(0, 1000)


@given(st.sampled_from(JobState), st.lists(st.tuples(states, counts, counts | st.none()), max_size=5))
def test_progress_is_a_share_and_whole_at_the_end_alone(
    state: JobState, runs: list[tuple[StageRunState, int, int | None]]
) -> None:
    made = job(state, *(run(each, progress=progress(done, total)) for each, done, total in runs))
    percent = shown(made).progress
    assert 0 <= percent <= 100
    assert (percent == 100) == (state is JobState.COMPLETED)


def test_progress_counts_each_stage_alike() -> None:
    done, half = run(StageRunState.SUCCEEDED), run(StageRunState.RUNNING, progress=progress(4, 8))
    assert shown(job(JobState.IN_PROGRESS, done, half, run(StageRunState.PENDING), done)).progress == 62


@pytest.mark.parametrize(
    ("parameters", "pipeline", "size", "seconds"),
    [
        ({}, PIPELINE, "640x360", "4"),
        ({"video": {"width": 832, "height": 480, "seconds": 2.5}}, PIPELINE, "832x480", "2.5"),
        ({"video": {"width": 832, "height": 480}}, None, "832x480", None),
        ({"video": {"seconds": "long", "width": []}}, None, None, None),
        ({"video": {"gone": 1, "seconds": 6}}, PIPELINE, None, "6"),
        ({"film": {"size": "832x480", "seconds": 5}}, REMOTE, "832x480", "5"),
        ({"film": {"size": "auto"}}, REMOTE, None, "2"),
        ({}, REMOTE, None, "2"),
    ],
)
def test_size_and_seconds_are_those_that_were_asked_for(
    parameters: dict[str, Any], pipeline: Pipeline | None, size: str | None, seconds: str | None
) -> None:
    video = shown(job(JobState.QUEUED), {"messages": [], "parameters": parameters}, pipeline)
    assert (video.size, video.seconds) == (size, seconds)


def test_what_is_too_long_to_be_read_is_not_shown() -> None:
    video = video_of(VideoJob(job(JobState.QUEUED), None), PIPELINE, 3600)
    assert (video.prompt, video.size, video.seconds) == (None, None, None)


def test_the_prompt_is_what_the_user_said_last() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "image", "media": 0}, {"type": "text", "text": "a boat"}]},
    ]
    assert shown(job(JobState.QUEUED), {"messages": messages, "parameters": {}}).prompt == "a boat"


def waiting(low_s: float, high_s: float) -> WaitingView:
    return WaitingView(
        reason="turn",
        stage="video",
        pipeline_version="1",
        pipeline_digest="d",
        message="it waits",
        estimate=EstimateView(low_s=low_s, high_s=high_s, basis="work"),
    )


RUNNING = run(StageRunState.RUNNING, started_at=NOW - timedelta(seconds=10))
PENDING = run(StageRunState.PENDING)


def running(done: int, total: int, resumed_at: int | None = None, *others: StageRunView) -> JobView:
    its = RUNNING.model_copy(update={"progress": progress(done, total, resumed_at)})
    return job(JobState.IN_PROGRESS, its, *others)


@pytest.mark.parametrize(
    ("made", "run_s", "after_ms"),
    [
        (job(JobState.QUEUED, run(StageRunState.QUEUED)), {}, 1000),
        (job(JobState.QUEUED, run(StageRunState.QUEUED), waiting=waiting(0, 1)), {}, 500),
        (job(JobState.QUEUED, run(StageRunState.QUEUED), waiting=waiting(20, 40)), {}, 2000),
        (job(JobState.QUEUED, run(StageRunState.QUEUED), waiting=waiting(20, 40)), {"video": 25.0}, 5000),
        (job(JobState.QUEUED, run(StageRunState.QUEUED)), {"video": 900.0}, 10_000),
        (job(JobState.IN_PROGRESS, RUNNING), {}, 1000),
        (job(JobState.IN_PROGRESS, RUNNING), {"video": 35.0}, 2000),
        (job(JobState.IN_PROGRESS, RUNNING), {"video": 5.0}, 500),
        (job(JobState.IN_PROGRESS, run(StageRunState.SUCCEEDED), RUNNING), {"video": 30.0}, 2000),
        (
            job(
                JobState.IN_PROGRESS,
                RUNNING.model_copy(update={"progress": progress(1, 8)}),
                run(StageRunState.PENDING),
            ),
            {},
            5000,
        ),
        (job(JobState.IN_PROGRESS, RUNNING.model_copy(update={"progress": progress(41, 81, 40)})), {}, 10_000),
        (running(1, 8, None, PENDING), {}, 5000),
        (running(41, 81, 40), {}, 10_000),
        (running(40, 41, 40), {"video": 22.0}, 1000),
        (running(9, 8), {}, 500),
        (job(JobState.COMPLETED), {}, None),
        (job(JobState.FAILED), {}, None),
    ],
)
def test_a_client_asks_again_after_a_tenth_of_what_is_left(
    made: JobView, run_s: dict[str, float], after_ms: int | None
) -> None:
    assert poll_after_ms(VideoJob(made, None, run_s), NOW) == after_ms


@given(
    st.sampled_from([state for state in JobState if not state.is_final]),
    st.lists(st.tuples(states, counts, counts | st.none(), st.integers(-5, 10_000) | st.none()), max_size=4),
    st.floats(0, 1e9),
)
def test_a_pause_is_always_one_of_a_few(
    state: JobState, runs: list[tuple[StageRunState, int, int | None, int | None]], high_s: float
) -> None:
    made = job(
        state,
        *(
            run(
                each,
                progress=progress(done, total),
                started_at=None if ago is None else NOW - timedelta(seconds=ago),
            )
            for each, done, total, ago in runs
        ),
        waiting=waiting(0, high_s),
    )
    assert poll_after_ms(VideoJob(made, None, {"video": high_s}), NOW) in POLLS_MS
