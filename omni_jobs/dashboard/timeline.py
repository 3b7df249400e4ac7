"""``timeline_of``: a job's stages drawn to scale: their waits and the steps of each attempt. It reads nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from omni_jobs.dashboard.templates import bytes_text, seconds_between, shortened, span
from omni_jobs.states import StageRunState
from omni_jobs.views import AttemptErrorView, JobView, StageRunView

_STEPS_S: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400)
_MOST_TICKS: Final = 6
_LEAST_SPAN_S: Final = 0.1
_LEAST_WIDTH: Final = 0.3  # %, so that what was short is seen

BarKind = Literal["waited", "loaded", "ran", "stored", "running", "failed", "cancelled"]
_Part = tuple[BarKind, datetime, datetime, str]  # what it was, from when, until when, in words
_STEPS: Final[Sequence[BarKind]] = ("loaded", "ran", "stored")


@dataclass(frozen=True, slots=True)
class Bar:
    """A time of a stage. ``left`` and ``width`` are percentages of the whole, and ``title`` says what it was.

    A step that an attempt came through is loaded, ran or stored. The one in which it ended otherwise, or is now, has
    the kind of that.
    """

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
        parts: list[_Part] = []
        since = stage.queued_at
        for error in sorted(stage.errors, key=lambda each: each.at):
            begun = error.started_at or since or error.at
            if since is not None and begun > since:
                parts.append(("waited", since, begun, "waited"))
            parts += _steps(error, begun, error.at, "failed")
            since = error.at
        parts += _last(stage, since, end)
        lines.append(StageLine(stage.name, [bar(*part) for part in parts]))
    return Timeline(lines, _ticks(whole), whole)


def _last(stage: StageRunView, since: datetime | None, end: datetime) -> list[_Part]:
    """Return the wait for the last attempt of a stage, and its steps, unless it is one that failed."""
    begun = stage.started_at
    waits_again = begun is not None and since is not None and begun <= since  # the last attempt is the failed one
    parts: list[_Part] = []
    if since is not None and stage.status is not StageRunState.FAILED:
        has_run = begun is not None and not waits_again and stage.status is not StageRunState.QUEUED
        until = begun if has_run and begun is not None else stage.finished_at or end
        parts.append(("waited", since, until, "waited"))
    if begun is None or waits_again or stage.status in (StageRunState.QUEUED, StageRunState.FAILED):
        return parts
    kind: Literal["succeeded", "cancelled", "running"] = (
        "succeeded"
        if stage.status is StageRunState.SUCCEEDED
        else "cancelled"
        if stage.status is StageRunState.CANCELLED
        else "running"
    )
    return [*parts, *_steps(stage, begun, stage.finished_at or end, kind)]


def _steps(
    of: StageRunView | AttemptErrorView,
    begun: datetime,
    until: datetime,
    end: Literal["succeeded", "failed", "cancelled", "running"],
) -> Iterator[_Part]:
    """Yield the steps of an attempt: those that it came through, then the one in which it ended, or is.

    What is left until the end belongs to the last one, so that of one that succeeded it holds the record of its end.
    """
    known = [each for each in (of.load_s, of.run_s, of.store_s) if each is not None]
    passed = known if end == "running" else known[:-1]
    attempt = f"attempt {of.attempt}"
    for step, seconds in zip(_STEPS, passed, strict=False):
        step_end = min(begun + timedelta(seconds=seconds), until)
        yield step, begun, step_end, f"{attempt} {step}"
        begun = step_end
    last = _STEPS[len(known) - 1] if known else "ran"
    in_step = f" while it {last}" if known else ""
    if end == "succeeded":
        yield last, begun, until, f"{attempt} {last}"
    elif end == "running":
        yield end, begun, until, f"{attempt} runs"
    else:
        yield end, begun, until, f"{attempt} {'failed' if end == 'failed' else 'was cancelled'}{in_step}"


def words_of(stage: StageRunView) -> list[str]:
    """Return what stands beside the line of a stage: how far it is, how long it ran, what it handed on."""
    words = []
    progress = stage.progress
    if stage.status is StageRunState.RUNNING and progress is not None:
        total = "" if progress.total is None else f" / {progress.total:,}"
        counted = progress.done if progress.total is None else progress.total
        words.append(f"{progress.done:,}{total} {shortened(progress.unit_of(counted), 40)}")
    elif stage.status is StageRunState.SUCCEEDED:
        words.append(span(seconds_between(stage.started_at, stage.finished_at)))
        if progress is not None:
            words.append(f"{progress.done:,} {shortened(progress.unit_of(progress.done), 40)}")
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
