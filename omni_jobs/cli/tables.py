"""Tables of jobs, stages, events and the stack's children, for a terminal. They only format the views they are given.

A function that says it returns a line per stage, job, event or child returns a rich table with such rows.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from omni_jobs.cli.terminal import printable
from omni_jobs.stack.child import ChildView
from omni_jobs.states import JobState, StageRunState
from omni_jobs.views import (
    CalibrationView,
    EventView,
    JobView,
    PipelineVersionView,
    StageRunView,
    WaitingView,
    WorkerView,
)

_STYLE_OF_STATE = {
    "completed": "green",
    "succeeded": "green",
    "ready": "green",
    "failed": "red",
    "expired": "red",
    "cancelled": "yellow",
    "cancelling": "yellow",
    "restarting": "yellow",
    "running": "cyan",
    "in_progress": "cyan",
    "starting": "cyan",
}
_MARK_OF_STATE = {"succeeded": "✔", "ready": "✔", "failed": "✘", "cancelled": "–", "stopped": "–", "restarting": "↻"}
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_SPINNING = ("running", "starting", "stopping")


def children_table(children: Sequence[ChildView]) -> Table:
    """Return a line per child of the embedded stack: its state, the duration of its start, its number of restarts."""
    table = Table.grid(padding=(0, 2))
    for child in children:
        restarts = f"restarted {child.restarts}×" if child.restarts else ""
        table.add_row(
            _mark(child.state), child.name, state_text(child.state), duration_text(child.start_s), Text(restarts)
        )
    return table


def job_progress(job: JobView) -> RenderableType:
    """Return a line per stage of a running job. Under them stands why it waits, or the end of its text."""
    table = Table.grid(padding=(0, 2))
    for stage in job.stages:
        table.add_row(
            _mark(stage.status), stage.name, state_text(stage.status), _amount(stage), duration_text(_ran_s(stage))
        )
    if job.waiting is not None:
        return Group(table, Text(waiting_reason(job.waiting), style="yellow"))
    texts = [stage.progress.text for stage in job.stages if stage.progress and stage.progress.text]
    if not texts or job.status.is_final:
        return table
    return Group(table, Text(printable(texts[0])[-300:], style="dim"))


def jobs_progress(jobs: Mapping[str, JobView | None]) -> RenderableType:
    """Return the progress of several jobs by their ids: a line for each job, its stages below it. None: not known."""
    parts: list[RenderableType] = []
    for job_id, job in jobs.items():
        head = Text(job_id, style="bold")
        parts.append(head if job is None else Text.assemble(head, "  ", job.pipeline, "  ", state_text(job.status)))
        if job is not None:
            parts.append(Padding(job_progress(job), (0, 0, 0, 2)))
    return Group(*parts)


def waiting_reason(waiting: WaitingView) -> str:
    """Return one line of text that says why a job waits, and for how long if that is known, from its view."""
    reason = f"{waiting.reason}: {printable(waiting.message)}"
    if waiting.due_at is not None:
        reason += f", at {moment(waiting.due_at)}"
    if waiting.estimate is not None:
        low, high = (duration_text(seconds) for seconds in (waiting.estimate.low_s, waiting.estimate.high_s))
        reason += f"; it starts in {low} to {high}, with 80 % probability"
    return reason


def _amount(stage: StageRunView) -> RenderableType:
    if stage.attempt > 1 and stage.errors and not stage.status.is_final:
        resumed_at = None if stage.progress is None else stage.progress.resumed_at
        at = "" if stage.progress is None or resumed_at is None else f", from {resumed_at} {stage.progress.unit} on"
        return Text(f"attempt {stage.attempt}{at}, after: {stage.errors[-1].message}", style="yellow")
    if stage.progress is None:
        return Text(stage.reason or "", style="dim")
    done, total = stage.progress.done, stage.progress.total
    unit = stage.progress.unit_of(total or done)
    if total and stage.status == StageRunState.RUNNING:
        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(total=total, completed=done, width=20), f"{done}/{total} {unit}")
        return bar
    return Text(f"{done} {unit}")


def timeline(job: JobView, width: int = 40) -> Table:
    """Return a line per stage of a job: how long it was queued, how long it ran, its payload's size, and a bar.

    The bar marks ░ queued and █ running. Its ``width`` characters are the time from the job's submit to its end or now.
    """
    start = job.created_at
    end = job.finished_at or datetime.now(UTC)
    scale = width / max((end - start).total_seconds(), 1e-9)
    table = table_of("stage")
    for title in ("queued", "running", "payload"):
        table.add_column(title, justify="right")
    table.add_column(f"0 … {duration_text((end - start).total_seconds())}")

    def column(moment: datetime | None) -> int:
        return width if moment is None else min(width, max(0, round((moment - start).total_seconds() * scale)))

    for stage in job.stages:
        if stage.queued_at is None:
            table.add_row(stage.name, "", "", "", state_text(stage.status))
            continue
        queued, started, finished = column(stage.queued_at), column(stage.started_at), column(stage.finished_at)
        ran = max(1, finished - started) if stage.started_at is not None else 0
        bar = Text(" " * queued)
        bar.append("░" * max(0, started - queued), style="dim")
        bar.append("█" * ran, style=_STYLE_OF_STATE.get(stage.status, ""))
        queued_s = duration_text(_seconds(stage.queued_at, stage.started_at or stage.finished_at))
        table.add_row(stage.name, queued_s, duration_text(_ran_s(stage)), size_text(stage.payload_bytes), bar)
    return table


def jobs_table(jobs: Sequence[JobView]) -> Table:
    """Return a line per job, in the given order: its id, pipeline, state, stages, time of submit and duration."""
    table = table_of("job", "pipeline", "status", "stages", "submitted")
    table.add_column("took", justify="right")
    for job in jobs:
        stages = Text("  ").join(
            Text(f"{_MARK_OF_STATE.get(stage.status, '·')} {stage.name}", style=_style(stage.status))
            for stage in job.stages
        )
        took = (job.finished_at - job.created_at).total_seconds() if job.finished_at else None
        status = state_text(job.status)
        if job.error is not None:
            status.append(f" ({job.error.code})")
        if job.waiting is not None and job.waiting.reason != "turn":  # a queued job says so already
            status.append(f" ({job.waiting.reason})", style="yellow")
        if job.warnings:
            status.append(f" ({', '.join(dict.fromkeys(warning.code for warning in job.warnings))})", style="yellow")
        table.add_row(job.id, job.pipeline, status, stages, moment(job.created_at), duration_text(took))
    return table


def job_summary(job: JobView) -> RenderableType:
    """Return what ``omni-jobs status JOB`` shows: state, reason to wait, error, timeline and failed attempts."""
    head = Text.assemble((job.id, "bold"), "  ", job.pipeline, "  ", state_text(job.status))
    if job.retries:
        head.append(f"  retried {job.retries}×", style="dim")
    if job.forked_from is not None:
        head.append(f"  forked from {job.forked_from}", style="dim")
    if job.expires_at is not None and not job.status.is_final:
        head.append(f"  expires at {moment(job.expires_at)}", style="dim")
    parts: list[RenderableType] = [head]
    if job.waiting is not None:
        parts.append(Text(waiting_reason(job.waiting), style="yellow"))
    if job.status in (JobState.FAILED, JobState.EXPIRED) and job.error is not None:
        parts.append(Text(f"{job.error.code}: {printable(job.error.message)}", style="red"))
    if job.status == JobState.EXPIRED:
        parts.append(Text("it never started" if job.started_at is None else "it had started", style="dim"))
    parts.append(timeline(job))
    if any(stage.errors for stage in job.stages):
        parts += [Text(""), _failed_attempts(job)]
    return Group(*parts)


def _failed_attempts(job: JobView) -> Table:
    table = table_of("stage", "attempt", "at", "worker", "error")
    for stage in job.stages:
        for error in stage.errors:
            what = Text(f"{error.code}: {printable(error.message)}", style="yellow" if error.retryable else "red")
            table.add_row(stage.name, str(error.attempt), moment(error.at), error.worker, what)
    return table


def events_table(events: Sequence[EventView]) -> Table:
    """Return a line per event of a job, in the given order: its time, type, and error or stages."""
    table = table_of("at", "event", "about")
    for event in events:
        about = event.data.get("error") or {name: value for name, value in event.data.items() if name == "stages"}
        code, message = about.get("code"), about.get("message")
        what = f"{code}: {message}" if code else ", ".join(about.get("stages", ()))
        table.add_row(moment(event.at), event.type, Text(printable(what)))
    return table


def stages_table(
    paused: Mapping[tuple[str, str], datetime | None], calibrations: Mapping[tuple[str, str], CalibrationView | None]
) -> Table:
    """Return a line per stage, by pipeline and name: since when it is paused, how many of its estimates have held."""
    table = table_of("pipeline", "stage", "paused since")
    table.add_column("estimates held", justify="right")
    for (pipeline, stage), paused_at in paused.items():
        its = calibrations.get((pipeline, stage))
        held = "" if its is None or its.share is None else f"{its.share:.0%} of {its.estimates}"
        table.add_row(pipeline, stage, Text(moment(paused_at), style="yellow"), held)
    return table


def versions_table(versions: Sequence[PipelineVersionView]) -> Table:
    """Return a line per version: its file, whether it takes new jobs, what is left of it, and its workers."""
    table = table_of("version", "digest", "state", "since")
    for title in ("queued", "in progress", "workers"):
        table.add_column(title, justify="right")
    table.add_column("")
    for each in versions:
        since = each.first_seen_at if each.draining_at is None else each.draining_at
        state = Text(each.state, style="" if each.state == "serving" else "yellow")
        star = "*" if each.is_default else ""
        remark = "its workers may go" if each.workers_may_go else "" if each.is_here else "no file here"
        numbers = (str(each.queued), str(each.in_progress + each.cancelling), str(each.workers))
        name = printable(f"{each.pipeline}@{each.version}{star}")
        table.add_row(name, each.digest[:16], state, moment(since), *numbers, remark)
    return table


def workers_table(workers: Sequence[WorkerView]) -> Table:
    """Return a line per worker: its slot and stage, what it has in flight, and since when it is drained."""
    table = table_of("worker", "pipeline", "stage")
    table.add_column("running", justify="right")
    table.add_column("drained since")
    for worker in workers:
        drained = Text(moment(worker.drained_at), style="yellow")
        running = f"{worker.running}/{worker.slots}"
        table.add_row(printable(worker.slot), worker.pipeline, worker.stage, running, drained)
    return table


def table_of(*titles: str, rows: Iterable[Iterable[str | Text]] = ()) -> Table:
    """Return a table with these column titles and rows, in the style of all tables of the commands."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in titles:
        table.add_column(title)
    for row in rows:
        table.add_row(*row)
    return table


def duration_text(seconds: float | None) -> str:
    """Return a duration in words: ``0.4 s``, ``12 s`` or ``3 min 05 s``; an empty text for None."""
    if seconds is None:
        return ""
    seconds = max(0.0, seconds)  # the clocks of two machines may differ
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def size_text(count: int | None) -> str:
    """Return a number of bytes in words: ``980 B``, ``12.3 kB`` or ``4.5 MB``; an empty text for None."""
    if count is None:
        return ""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def moment(at: datetime | None) -> str:
    """Return a time as this machine's clock shows it, to the second; an empty text for None."""
    return "" if at is None else at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _ran_s(stage: StageRunView) -> float | None:
    return _seconds(stage.started_at, stage.finished_at)


def _seconds(start: datetime | None, end: datetime | None) -> float | None:
    """Return the seconds from ``start`` to ``end``, or until now; None before the start."""
    return None if start is None else ((end or datetime.now(UTC)) - start).total_seconds()


def _style(state: str) -> str:
    return _STYLE_OF_STATE.get(state, "dim")


def state_text(state: str) -> Text:
    """Return the name of a state, in its colour."""
    return Text(state, style=_style(state))


def _mark(state: str) -> RenderableType:
    if state in _SPINNING:
        return Text(_FRAMES[int(time.monotonic() * 10) % len(_FRAMES)], style="cyan")
    return Text(_MARK_OF_STATE.get(state, "·"), style=_style(state))
