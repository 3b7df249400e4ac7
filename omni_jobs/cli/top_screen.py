"""``TopScreen``: what ``omni-jobs top`` shows of a server's status. It only formats the status it is given.

A narrow terminal leaves columns out, so that no line is folded; a low one leaves rows out, and says how many. The
stages where something stands still come first, so that these are never the ones left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias

from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from omni_jobs.cli.options import TopPart
from omni_jobs.cli.tables import duration_text, state_text, table_of
from omni_jobs.cli.terminal import printable
from omni_jobs.states import StageRunState
from omni_jobs.views import RecentJob, StageLoad, Status, WorkerView

_WIDE: Final = 100  # columns of a terminal, from which on a table has its lesser columns, too
_NARROW: Final = 70  # columns of a terminal, below which it has the main ones alone
_HOUR_S: Final = 3600
_LEAST_ROWS: Final = 3  # of each part, on a terminal that is low
_AROUND: Final = 3  # lines of a part beside its rows: a blank one, the titles, and how many rows are left out


_Cell: TypeAlias = Text | ProgressBar | str


class _Part(NamedTuple):
    """A table: titles of columns, and rows of as many cells."""

    titles: Sequence[str]
    rows: Sequence[Sequence[_Cell]]
    numbers: frozenset[str]  # titles of the columns that stand at the right
    elastic: frozenset[str]  # titles of the columns that are cut where the terminal is narrow; the others are not

    def table(self, shown: int) -> Table:
        """Return the table with its first rows."""
        table = table_of()
        for title in self.titles:
            # Rich narrows the columns that it may fold; cells that must not be folded are cut then.
            justify: JustifyMethod = "right" if title in self.numbers else "left"
            table.add_column(title, justify=justify, no_wrap=title not in self.elastic)
        for row in self.rows[:shown]:
            cells = zip(self.titles, row, strict=True)
            table.add_row(*(_cut(cell) if title in self.elastic else cell for title, cell in cells))
        return table


@dataclass(frozen=True)
class TopScreen:
    """A status as a rich renderable: a line about jobs, and a table for each part."""

    status: Status
    parts: Sequence[TopPart] = tuple(TopPart)
    lines: int | None = None  # of the terminal, all of which it may fill; None: any number
    stale: str | None = None  # why the status is not of now; None: it is

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._head()
        made = [_MAKE[part](self.status, options.max_width) for part in self.parts]
        for part, shown in zip(made, _shown([len(each.rows) for each in made], self.lines), strict=True):
            yield Text("")
            yield part.table(shown)
            if not part.rows:
                yield Text("none", style="dim")
            if shown < len(part.rows):
                yield Text(f"… and {len(part.rows) - shown} more", style="dim")

    def _head(self) -> Text:
        jobs = "  ".join(f"{state.value} {count:,}" for state, count in self.status.jobs.items()) or "none"
        head = Text(no_wrap=True, overflow="ellipsis")
        head.append(_clock(self.status.at), style="dim")
        if self.stale is not None:
            head.append(f"  OLD: {printable(self.stale)}", style="bold red")
        head.append("  jobs: ")
        head.append(jobs, style="bold")
        return head


def _shown(numbers: Sequence[int], lines: int | None) -> Sequence[int]:
    """Return how many rows of each part are shown: a fair share of the lines, and what earlier parts leave over."""
    if lines is None:
        return numbers
    left = max(0, lines - 2 - _AROUND * len(numbers))
    shown = []
    for index, number in enumerate(numbers):
        shown.append(min(number, max(_LEAST_ROWS, left // (len(numbers) - index))))
        left = max(0, left - shown[-1])
    return shown


def _overview(status: Status, columns: int) -> _Part:
    """Return a row for each stage: what waits and runs in it, and why nothing of it moves. Those in need come first."""
    bar = ("",) if columns >= _WIDE else ()
    more = ("pending", "running", *bar, "workers") if columns >= _NARROW else ("running",)
    rows = []
    for load in sorted(status.stages, key=_urgency):
        cells: dict[str, _Cell] = {"pending": f"{load.pending:,}", "running": f"{load.running:,}/{load.slots:,}"}
        cells |= {"": _bar(load.running, load.slots), "workers": f"{load.workers:,}"}
        named = f"{load.reference}.{load.stage}"
        state = _stage_state(load, _reason(status, load))
        if load.draining:
            state.append(", its version drains", style="yellow")
        rows.append((named, f"{load.queued:,}", *(cells[title] for title in more), state))
    return _Part(
        titles=("stage", "queued", *more, "state"),
        rows=rows,
        numbers=frozenset({"queued", "pending", "running", "workers"}),
        elastic=frozenset({"stage"}),
    )


def _reason(status: Status, load: StageLoad) -> str | None:
    """Return why the oldest of the newest jobs that wait at a stage does; None: none does."""
    place = (load.pipeline, load.stage)
    waiting = [job.waiting for job in status.recent if job.waiting and (job.pipeline, job.waiting.stage) == place]
    reasons = [each.reason for each in waiting if load.version in (None, each.pipeline_version)]
    return reasons[-1] if reasons else None


def _urgency(load: StageLoad) -> int:
    """Return the place of a stage among the others: 0 where something stands still, 1 at work, 2 with nothing to do."""
    if load.queued and (load.paused or not load.running):
        return 0
    return 1 if load.queued or load.running else 2


def _stage_state(load: StageLoad, reason: str | None) -> Text:
    """Return how a stage gets on. ``reason``: why one of the newest jobs waits there; None: none does."""
    stands_still = not _urgency(load)
    if load.paused:
        return Text("paused", style="yellow")
    if load.queued and not load.workers and load.down:
        return Text("engine down", style="bold red")
    if not load.workers and reason == "loading_model":
        return Text("loads the model", style="yellow")
    if not load.workers and load.drained:
        return Text("drained", style="yellow")
    if not load.workers:
        return Text("no worker", style="bold red" if stands_still else "dim")
    if load.queued and load.running >= load.slots:
        return Text("full", style="cyan")
    if load.running:
        return Text("at work")
    return Text("waiting", style="yellow") if stands_still else Text("idle", style="dim")


def _workers(status: Status, columns: int) -> _Part:
    """Return a row for each worker. Only operators see them: for others the one row says so."""
    if not status.workers and any(load.workers for load in status.stages):
        row = (Text("shown to a key with the scope admin", style="dim"),)
        return _Part(("worker",), [row], frozenset(), frozenset())
    is_wide = columns >= _WIDE
    more = ("", "host", "pid") if is_wide else ()
    age = ("up for",) if columns >= _NARROW else ()
    return _Part(
        titles=("worker", "running", *more, *age, "renewed"),
        rows=[
            (
                worker.slot,
                _in_flight(worker),
                *((_bar(worker.running, worker.slots), worker.host, str(worker.pid)) if is_wide else ()),
                *(_since(status.at, worker.started_at) for _ in age),
                _renewed(status.at, worker),
            )
            for worker in status.workers
        ],
        numbers=frozenset({"running", "pid"}),
        elastic=frozenset({"worker", "host"}),
    )


def _in_flight(worker: WorkerView) -> Text:
    if worker.drained_at is not None:
        return Text(f"{worker.running}, drained", style="yellow")
    return Text(f"{worker.running}/{worker.slots}")


def _renewed(at: datetime, worker: WorkerView) -> Text:
    is_late = (worker.lease_until - at).total_seconds() < (worker.lease_until - worker.renewed_at).total_seconds() / 2
    return Text(f"{_since(at, worker.renewed_at)} ago", style="yellow" if is_late else "")


def _jobs(status: Status, columns: int) -> _Part:
    """Return a row for each of the newest jobs: how it stands, and where it is."""
    is_wide, has_age = columns >= _WIDE, columns >= _NARROW
    pipeline, age, took = ("pipeline",) * is_wide, ("age",) * has_age, ("took",) * is_wide
    return _Part(
        titles=("job", *pipeline, "status", "stage", *age, *took),
        rows=[
            (
                job.id,
                *(job.pipeline for _ in pipeline),
                _job_state(job),
                _where(job),
                *(_since(status.at, job.created_at) for _ in age),
                *(_since(job.finished_at, job.created_at) if job.finished_at else "" for _ in took),
            )
            for job in status.recent
        ],
        numbers=frozenset({"age", "took"}),
        elastic=frozenset({"pipeline", "status", "stage"}),
    )


def _job_state(job: RecentJob) -> Text:
    state = state_text(job.status)
    if job.error is not None:
        state.append(f" ({job.error.code})")
    elif job.waiting is not None and job.waiting.reason != "turn":  # a queued job says so already
        state.append(f" ({job.waiting.reason})", style="yellow")
    return state


def _where(job: RecentJob) -> str:
    """Return the stages of a job that run, with their progress, else the one that waits; nothing of one that ended."""
    if job.status.is_final:
        return ""
    running = [stage for stage in job.stages if stage.status is StageRunState.RUNNING]
    if not running:
        return next((stage.name for stage in job.stages if not stage.status.is_final), "")
    named = []
    for stage in running:
        progress = stage.progress
        share = f" {100 * progress.done // progress.total} %" if progress is not None and progress.total else ""
        named.append(f"{stage.name}{share}")
    return ", ".join(named)


_MAKE = {TopPart.OVERVIEW: _overview, TopPart.WORKERS: _workers, TopPart.JOBS: _jobs}


def _cut(cell: _Cell) -> _Cell:
    """Return a text that is cut to its column's width."""
    if isinstance(cell, ProgressBar):
        return cell
    text = Text(printable(" ".join(cell.split()))) if isinstance(cell, str) else cell
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _bar(taken: int, slots: int) -> ProgressBar:
    return ProgressBar(total=max(1, slots), completed=min(taken, slots), width=16)


def _since(at: datetime, then: datetime) -> str:
    """Return the time between two moments in words; from an hour on without seconds."""
    seconds = (at - then).total_seconds()
    if seconds < _HOUR_S:
        return duration_text(seconds)
    hours, minutes = divmod(round(seconds / 60), 60)
    days, hours_of_day = divmod(hours, 24)
    return f"{days} d {hours_of_day} h" if days else f"{hours} h {minutes:02d} min"


def _clock(at: datetime) -> str:
    return at.astimezone().strftime("%H:%M:%S")
