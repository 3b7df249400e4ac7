"""What people see in a terminal: the stack as it starts, a job as it runs, its timeline, tables.

Mostly pure functions from values to rich renderables, which the command line and the
demo print; ``show_start`` and ``show_progress`` keep one on the screen while they wait.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from omni_jobs.states import JobState, StageRunState

if TYPE_CHECKING:
    from omni_jobs.client import Client
    from omni_jobs.stack.child import ChildView
    from omni_jobs.stack.embedded import EmbeddedStack
    from omni_jobs.views import EventView, JobView, StageRunView, WaitingView

__all__ = [
    "children_table",
    "events_table",
    "failed_attempts",
    "in_bytes",
    "in_seconds",
    "job_progress",
    "job_summary",
    "jobs_table",
    "printable",
    "show_progress",
    "show_start",
    "show_text",
    "timeline",
]

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
_BAR = 40


def in_seconds(seconds: float | None) -> str:
    """``0.4 s``, ``12 s``, ``3 min 05 s``; nothing for None."""
    if seconds is None:
        return ""
    seconds = max(0.0, seconds)  # two machines' clocks may differ
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def in_bytes(count: int | None) -> str:
    """``980 B``, ``12.3 kB``, ``4.5 MB``; nothing for None."""
    if count is None:
        return ""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def show_start(stack: EmbeddedStack) -> None:
    """Start the stack with a live view of its processes on stderr; without a terminal, a line for each at the end."""
    console = Console(stderr=True)
    if console.is_terminal:
        with Live(get_renderable=lambda: children_table(stack.children()), console=console, refresh_per_second=8):
            stack.start()
        return
    stack.start()
    for child in stack.children():
        console.print(f"{child.name} ready after {in_seconds(child.start_s)}", highlight=False)


def show_progress(client: Client, job_id: str, timeout: float | None = None) -> JobView:
    """Wait for a job with its progress live on stderr; without a terminal, a line per change of a stage's state."""
    console = Console(stderr=True)
    seen = client.get(job_id)
    said: set[tuple[str, str]] = set()

    def take(job: JobView) -> None:
        nonlocal seen
        seen = job
        if not console.is_terminal:
            for stage in job.stages:
                if stage.status != StageRunState.PENDING and (stage.name, stage.status.value) not in said:
                    said.add((stage.name, stage.status.value))
                    console.print(f"{stage.name} {stage.status.value}", highlight=False)
            if job.waiting is not None and (job.waiting.stage, job.waiting.reason) not in said:
                said.add((job.waiting.stage, job.waiting.reason))
                console.print(Text(_why_waiting(job.waiting)), soft_wrap=True)

    if not console.is_terminal:
        return client.wait(job_id, timeout=timeout, on_update=take)
    with Live(get_renderable=lambda: job_progress(seen), console=console, refresh_per_second=8):
        return client.wait(job_id, timeout=timeout, on_update=take)


def show_text(client: Client, job_id: str, prompt: str, timeout: float | None = None) -> JobView:
    """Wait for a job of one text and print that as it grows, on stdout; until it begins, a spinner on stderr."""
    console = Console()
    console.print(Text(f"\n> {printable(prompt)}\n", style="dim"), soft_wrap=True)
    waiting = Console(stderr=True).status("waiting for the first word")
    shown = ""

    def print_on(text: str) -> None:
        nonlocal shown
        if not text.startswith(shown):  # a second attempt began anew
            console.print("\n")
            shown = ""
        if text != shown:
            waiting.stop()
            console.print(Text(printable(text[len(shown) :])), end="", soft_wrap=True)
            shown = text

    def take(job: JobView) -> None:
        for stage in job.stages:
            if stage.progress is not None and stage.progress.text:
                print_on(stage.progress.text)

    try:
        with waiting:
            job = client.wait(job_id, timeout=timeout, on_update=take)
        print_on((job.result or {}).get("text") or shown)
    finally:
        console.print()
    return job


def children_table(children: Sequence[ChildView]) -> Table:
    """The stack's processes: state and seconds until ready (so far)."""
    table = Table.grid(padding=(0, 2))
    for child in children:
        restarts = f"restarted {child.restarts}×" if child.restarts else ""
        table.add_row(
            _mark(child.state.value), child.name, _state(child.state.value), in_seconds(child.start_s), Text(restarts)
        )
    return table


def job_progress(job: JobView) -> RenderableType:
    """A job as it runs: one line per stage, and the text so far."""
    table = Table.grid(padding=(0, 2))
    for stage in job.stages:
        table.add_row(
            _mark(stage.status.value), stage.name, _state(stage.status.value), _amount(stage), in_seconds(_ran_s(stage))
        )
    if job.waiting is not None:
        return Group(table, Text(_why_waiting(job.waiting), style="yellow"))
    texts = [stage.progress.text for stage in job.stages if stage.progress and stage.progress.text]
    if not texts or job.status.is_final:
        return table
    return Group(table, Text(printable(texts[0])[-300:], style="dim"))


def _why_waiting(waiting: WaitingView) -> str:
    return f"{waiting.reason}: {printable(waiting.message)}"


def _amount(stage: StageRunView) -> RenderableType:
    if stage.attempt > 1 and stage.errors and not stage.status.is_final:
        return Text(f"attempt {stage.attempt}, after: {stage.errors[-1].message}", style="yellow")
    if stage.progress is None:
        return Text(stage.reason or "", style="dim")
    done, total, unit = stage.progress.done, stage.progress.total, stage.progress.unit
    if total and stage.status == StageRunState.RUNNING:
        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(total=total, completed=done, width=20), f"{done}/{total} {unit}")
        return bar
    return Text(f"{done} {unit}")


def timeline(job: JobView, width: int = _BAR) -> Table:
    """Per stage when it waited (░) and ran (█), on one scale, with seconds and payload bytes."""
    start = job.created_at
    end = job.finished_at or datetime.now(UTC)
    scale = width / max((end - start).total_seconds(), 1e-9)
    table = _table("stage")
    for title in ("queued", "running", "payload"):
        table.add_column(title, justify="right")
    table.add_column(f"0 … {in_seconds((end - start).total_seconds())}")

    def column(moment: datetime | None) -> int:
        return width if moment is None else min(width, max(0, round((moment - start).total_seconds() * scale)))

    for stage in job.stages:
        if stage.queued_at is None:
            table.add_row(stage.name, "", "", "", _state(stage.status.value))
            continue
        queued, started, finished = column(stage.queued_at), column(stage.started_at), column(stage.finished_at)
        ran = max(1, finished - started) if stage.started_at is not None else 0
        bar = Text(" " * queued)
        bar.append("░" * max(0, started - queued), style="dim")
        bar.append("█" * ran, style=_STYLE_OF_STATE.get(stage.status.value, ""))
        table.add_row(
            stage.name, in_seconds(_queued_s(stage)), in_seconds(_ran_s(stage)), in_bytes(stage.payload_bytes), bar
        )
    return table


def jobs_table(jobs: Sequence[JobView]) -> Table:
    """The newest first, a line each."""
    table = _table("job", "pipeline", "status", "stages", "submitted")
    table.add_column("took", justify="right")
    for job in jobs:
        stages = Text("  ").join(
            Text(f"{_MARK_OF_STATE.get(stage.status.value, '·')} {stage.name}", style=_style(stage.status.value))
            for stage in job.stages
        )
        took = (job.finished_at - job.created_at).total_seconds() if job.finished_at else None
        status = _state(job.status.value)
        if job.error is not None:
            status.append(f" ({job.error.code})")
        if job.waiting is not None:
            status.append(f" ({job.waiting.reason})", style="yellow")
        if job.warnings:
            status.append(f" ({', '.join(dict.fromkeys(warning.code for warning in job.warnings))})", style="yellow")
        table.add_row(job.id, job.pipeline, status, stages, _moment(job.created_at), in_seconds(took))
    return table


def job_summary(job: JobView) -> RenderableType:
    """A job's state, why it waits, its error if it has one, its timeline, and every attempt that failed."""
    head = Text.assemble((job.id, "bold"), "  ", job.pipeline, "  ", _state(job.status.value))
    if job.retries:
        head.append(f"  sent on again {job.retries}×", style="dim")
    if job.expires_at is not None and not job.status.is_final:
        head.append(f"  stops by itself at {_moment(job.expires_at)}", style="dim")
    parts: list[RenderableType] = [head]
    if job.waiting is not None:
        parts.append(Text(_why_waiting(job.waiting), style="yellow"))
    if job.status in (JobState.FAILED, JobState.EXPIRED) and job.error is not None:
        parts.append(Text(f"{job.error.code}: {printable(job.error.message)}", style="red"))
    if job.status == JobState.EXPIRED:
        parts.append(Text("it never started" if job.started_at is None else "it had started", style="dim"))
    parts.append(timeline(job))
    if any(stage.errors for stage in job.stages):
        parts += [Text(""), failed_attempts(job)]
    return Group(*parts)


def failed_attempts(job: JobView) -> Table:
    """A line per attempt that failed, in the order of stages and attempts."""
    table = _table("stage", "attempt", "at", "worker", "error")
    for stage in job.stages:
        for error in stage.errors:
            what = Text(f"{error.code}: {printable(error.message)}", style="yellow" if error.retryable else "red")
            table.add_row(stage.name, str(error.attempt), _moment(error.at), error.worker, what)
    return table


def events_table(events: Sequence[EventView]) -> Table:
    """The oldest first, a line each."""
    table = _table("at", "event", "about")
    for event in events:
        about = event.data.get("error") or {name: value for name, value in event.data.items() if name == "stages"}
        code, message = about.get("code"), about.get("message")
        what = f"{code}: {message}" if code else ", ".join(about.get("stages", ()))
        table.add_row(_moment(event.at), event.type, Text(printable(what)))
    return table


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in titles:
        table.add_column(title)
    return table


def _moment(at: datetime) -> str:
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _queued_s(stage: StageRunView) -> float | None:
    if stage.queued_at is None:
        return None
    return ((stage.started_at or stage.finished_at or datetime.now(UTC)) - stage.queued_at).total_seconds()


def _ran_s(stage: StageRunView) -> float | None:
    if stage.started_at is None:
        return None
    return ((stage.finished_at or datetime.now(UTC)) - stage.started_at).total_seconds()


def _style(state: str) -> str:
    return _STYLE_OF_STATE.get(state, "dim")


def _state(state: str) -> Text:
    return Text(state, style=_style(state))


def _mark(state: str) -> RenderableType:
    if state in _SPINNING:
        return Text(_FRAMES[int(time.monotonic() * 10) % len(_FRAMES)], style="cyan")
    return Text(_MARK_OF_STATE.get(state, "·"), style=_style(state))


def printable(text: str) -> str:
    """Without what would move the cursor; a model's text may hold anything."""
    return "".join(character if character.isprintable() or character == "\n" else "�" for character in text)
