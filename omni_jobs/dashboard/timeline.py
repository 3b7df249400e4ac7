"""``timeline_of``: a job's stages drawn to scale: what waited and what ran, attempt by attempt. It reads nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from omni_jobs.dashboard.templates import bytes_text, seconds_between, shortened, span
from omni_jobs.states import StageRunState
from omni_jobs.views import JobView, StageRunView

_STEPS_S: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400)
_MOST_TICKS: Final = 6
_LEAST_SPAN_S: Final = 0.1
_LEAST_WIDTH: Final = 0.3  # %, so that what was short is seen

BarKind = Literal["waited", "failed", "running", "succeeded", "cancelled"]


@dataclass(frozen=True, slots=True)
class Bar:
    """A time of a stage. ``left`` and ``width`` are percentages of the whole, and ``title`` says what it was."""

    kind: BarKind
    left: float
    width: float
    seconds: float
    title: str


@dataclass(frozen=True, slots=True)
class StageLine:
    """The line of a stage."""

    stage: str
    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The lines of a job's stages; ``ticks`` are (percentage, seconds since the job came)."""

    lines: Sequence[StageLine]
    ticks: Sequence[tuple[float, float]]
    seconds: float


def timeline_of(job: JobView, now: datetime) -> Timeline:
    """Return the timeline of a job, from its submit until its end, or until ``now``.

    Of an attempt whose begin an earlier version did not note, the bar begins where the one before ended, and so holds
    its wait as well.
    """
    begin, end = job.created_at, job.finished_at or now
    whole = max(_LEAST_SPAN_S, (end - begin).total_seconds())

    def bar(kind: BarKind, start: datetime, stop: datetime, title: str) -> Bar:
        start_s = min(max(0.0, (start - begin).total_seconds()), whole)
        stop_s = min(max(start_s, (stop - begin).total_seconds()), whole)
        width = max(_LEAST_WIDTH, 100 * (stop_s - start_s) / whole)
        left = min(100 * start_s / whole, 100 - width)
        return Bar(kind, round(left, 2), round(width, 2), stop_s - start_s, title)

    lines = []
    for stage in job.stages:
        bars: list[Bar] = []
        since = stage.queued_at
        for error in sorted(stage.errors, key=lambda each: each.at):
            begun = error.started_at or since or error.at
            if since is not None and begun > since:
                bars.append(bar("waited", since, begun, "waited"))
            bars.append(bar("failed", begun, error.at, f"attempt {error.attempt} failed"))
            since = error.at
        lines.append(StageLine(stage.name, [*bars, *(bar(*part) for part in _last(stage, since, end))]))
    return Timeline(lines, _ticks(whole), whole)


def _last(stage: StageRunView, since: datetime | None, end: datetime) -> list[tuple[BarKind, datetime, datetime, str]]:
    """Return the wait for the last attempt of a stage, and that attempt, unless it is one that failed."""
    begun = stage.started_at
    waits_again = begun is not None and since is not None and begun <= since  # the last attempt is the failed one
    parts: list[tuple[BarKind, datetime, datetime, str]] = []
    if since is not None and stage.status is not StageRunState.FAILED:
        has_run = begun is not None and not waits_again and stage.status is not StageRunState.QUEUED
        until = begun if has_run and begun is not None else stage.finished_at or end
        parts.append(("waited", since, until, "waited"))
    if begun is None or waits_again or stage.status in (StageRunState.QUEUED, StageRunState.FAILED):
        return parts
    kind: BarKind = (
        "succeeded"
        if stage.status is StageRunState.SUCCEEDED
        else "cancelled"
        if stage.status is StageRunState.CANCELLED
        else "running"
    )
    word = {"succeeded": "ran", "cancelled": "ran until it was cancelled", "running": "runs"}[kind]
    return [*parts, (kind, begun, stage.finished_at or end, f"attempt {stage.attempt} {word}")]


def words_of(stage: StageRunView) -> list[str]:
    """Return what stands beside the line of a stage: how far it is, how long it ran, what it handed on."""
    words = []
    progress = stage.progress
    if stage.status is StageRunState.RUNNING and progress is not None:
        total = "" if progress.total is None else f" / {progress.total:,}"
        words.append(f"{progress.done:,}{total} {shortened(progress.unit, 40)}")
    elif stage.status is StageRunState.SUCCEEDED:
        words.append(span(seconds_between(stage.started_at, stage.finished_at)))
        if progress is not None:
            words.append(f"{progress.done:,} {shortened(progress.unit, 40)}")
    elif stage.reason is not None:
        words.append(stage.reason.replace("_", " "))
    if progress is not None and progress.resumed_at is not None:
        words.append(f"resumed at {progress.resumed_at:,}")
    if stage.attempt > 1:
        words.append(f"attempt {stage.attempt}")
    if stage.payload_bytes:
        words.append(f"hands on {bytes_text(stage.payload_bytes)}")
    return words


def _ticks(whole: float) -> list[tuple[float, float]]:
    step = next((each for each in _STEPS_S if whole / each <= _MOST_TICKS), None)
    if step is None:
        step = _STEPS_S[-1] * (1 + whole // (_STEPS_S[-1] * _MOST_TICKS))
    return [(round(100 * n * step / whole, 2), n * step) for n in range(int(whole / step) + 1)]
