"""``VideoOfJob``: a job that makes a video, as OpenAI's clients know it, made of the job and its request."""

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, Literal

from pydantic import BaseModel, ValidationError

from omni_jobs.jobs import VideoJob
from omni_jobs.openai.job_errors import error_of
from omni_jobs.openai.named_field import named_shape
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.prompts.messages import last_user_text
from omni_jobs.states import JobState, StageRunState
from omni_jobs.views import JobView, StageRunView

VideoStatus = Literal["queued", "in_progress", "completed", "failed"]

STATUSES: Final[Mapping[JobState, VideoStatus]] = {
    JobState.QUEUED: "queued",
    JobState.IN_PROGRESS: "in_progress",
    JobState.CANCELLING: "in_progress",  # a worker still runs a stage of it
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "failed",
    JobState.EXPIRED: "failed",
}
"""What OpenAI's clients call the states of jobs. How a failed one has ended, its error says."""

POLLS_MS: Final = (500, 1_000, 2_000, 5_000, 10_000)
"""The pauses between two polls that a client may be told. They are few, because finer ones would tell a tenant how much
others' jobs hold its own up."""

_DEFAULT_POLL_MS = 1_000  # where nobody knows how long the job takes: the stock client's own
_SHARE = 0.1  # of the time that is left. The stock client keeps to its first pause, so it is late by that much at most


class VideoError(BaseModel):
    """Why a video failed."""

    code: str
    message: str
    param: str | None
    type: str


class VideoOfJob(BaseModel):
    """A job that makes a video. ``size`` and ``seconds`` are null where neither the request nor the pipeline has them.

    So is ``prompt`` where the request is too long to be shown.
    """

    id: str
    object: Literal["video"] = "video"
    model: str
    status: VideoStatus
    progress: int  # 0 to 100
    created_at: int  # unix seconds, as the two below
    completed_at: int | None
    expires_at: int | None  # when the artifact goes
    size: str | None
    seconds: str | None
    prompt: str | None
    error: VideoError | None
    remixed_from_video_id: None = None


class VideoList(BaseModel):
    """A page of videos."""

    object: Literal["list"] = "list"
    data: list[VideoOfJob]
    first_id: str | None
    last_id: str | None  # behind it begins the next page
    has_more: bool


class DeletedVideo(BaseModel):
    """A video that is deleted."""

    id: str
    object: Literal["video.deleted"] = "video.deleted"
    deleted: Literal[True] = True


def video_id_of(job_id: str) -> str:
    """Return the id of the video that a job makes."""
    return job_id.replace("job-", "video_", 1)


def job_id_of(video_id: str) -> str:
    """Return the id of the job that makes a video."""
    return video_id.replace("video_", "job-", 1)


def video_of(made: VideoJob, pipeline: Pipeline | None, keep_s: float) -> VideoOfJob:
    """Return the video that a job makes, whose artifact goes ``keep_s`` after the job's end.

    ``pipeline``: the job's, as it is served now; None: it is not served any more.
    """
    job = made.job
    status = STATUSES[job.status]
    ended = None if job.finished_at is None or status != "completed" else job.finished_at.timestamp()
    asked = {} if made.request is None else _parameters(made.request, pipeline)
    return VideoOfJob(
        id=video_id_of(job.id),
        model=job.pipeline,
        status=status,
        progress=_progress(job),
        created_at=int(job.created_at.timestamp()),
        completed_at=None if ended is None else int(ended),
        expires_at=None if ended is None else int(ended + keep_s),
        size=_size(asked),
        seconds=_seconds(asked),
        prompt=None if made.request is None else last_user_text(made.request),
        error=_error(job) if status == "failed" else None,
    )


def poll_after_ms(made: VideoJob, at: datetime) -> int | None:
    """Return after how many milliseconds a client asks best again, at this time; None: the job has ended."""
    if made.job.status.is_final:
        return None
    left_s = _seconds_left(made, at)
    if left_s is None:
        return _DEFAULT_POLL_MS
    return max((each for each in POLLS_MS if each <= left_s * _SHARE * 1000), default=POLLS_MS[0])


def _parameters(request: Mapping[str, Any], pipeline: Pipeline | None) -> dict[str, Any]:
    """Return the parameters of the stages that make the video, together: those asked for, else the defaults."""
    given: Mapping[str, Mapping[str, Any]] = request["parameters"]
    if pipeline is None or "video" not in pipeline.outputs:
        return {name: value for values in given.values() for name, value in values.items()}
    chosen: dict[str, Any] = {}
    for stage in pipeline.stages_for(["video"]):
        of_stage = given.get(stage.name, {})
        with suppress(ValidationError):  # the pipeline file is another one by now
            of_stage = stage.parameters_with(of_stage).model_dump()
        chosen |= {name: value for name, value in of_stage.items() if value is not None}
    return chosen


def _size(asked: Mapping[str, Any]) -> str | None:
    size = asked.get("size")
    if {"width", "height"} <= asked.keys():
        size = f"{asked['width']}x{asked['height']}"
    return size if isinstance(size, str) and re.fullmatch(r"\d+x\d+", size) else None


def _seconds(asked: Mapping[str, Any]) -> str | None:
    seconds, frames, fps = (asked.get(name) for name in ("seconds", "num_frames", "fps"))
    if seconds is None and isinstance(frames, int) and isinstance(fps, int | float) and fps:
        seconds = frames / fps
    return f"{seconds:g}" if isinstance(seconds, int | float) else None


def _progress(job: JobView) -> int:
    """Return how much of its stages the job has done, in percent. It is 100 of a completed job alone."""
    if job.status is JobState.COMPLETED:
        return 100
    done = sum(_share_done(run) for run in job.stages)
    return min(99, int(100 * done / max(1, len(job.stages))))


def _share_done(run: StageRunView) -> float:
    if run.status is StageRunState.SUCCEEDED:
        return 1.0
    progress = run.progress
    if progress is None or not progress.total:
        return 0.0
    return min(1.0, max(0, progress.done) / progress.total)


def _error(job: JobView) -> VideoError:
    shape = named_shape(error_of(job))
    return VideoError(code=shape["code"], message=shape["message"], param=shape["param"], type=shape["type"])


def _seconds_left(made: VideoJob, at: datetime) -> float | None:
    """Return how long the job probably still takes, its stages one after the other; None: nothing tells."""
    waiting = made.job.waiting
    estimate = None if waiting is None else waiting.estimate
    parts = [_run_seconds_left(run, made.run_s.get(run.name), at) for run in made.job.stages]
    parts.append(None if estimate is None else (estimate.low_s + estimate.high_s) / 2)
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _run_seconds_left(run: StageRunView, usual_s: float | None, at: datetime) -> float | None:
    if run.status.is_final:
        return 0.0
    if run.status is not StageRunState.RUNNING or run.started_at is None:
        return usual_s
    gone_s = max(0.0, (at - run.started_at).total_seconds())
    progress = run.progress
    done = 0 if progress is None else progress.done - (progress.resumed_at or 0)
    if progress is not None and progress.total and done > 0:
        return gone_s * max(0, progress.total - progress.done) / done
    return None if usual_s is None else max(0.0, usual_s - gone_s)
