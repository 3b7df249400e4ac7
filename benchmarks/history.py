"""A database with the jobs of thirty days: of many tenants, in all states, with errors of many kinds."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from rich.progress import track
from sqlalchemy import Column, Connection, Table, func, insert, literal, select, text
from sqlalchemy.sql.elements import ColumnElement

from benchmarks.echo import LEASE_S, complete, worker
from omni_jobs.database.database import Database
from omni_jobs.database.seen_tables import AuditRow, StageSampleRow
from omni_jobs.database.tables import AttemptErrorRow, Base, EventRow, JobLabelRow, JobRow, StageRunRow
from omni_jobs.errors import ModelError
from omni_jobs.jobs import COARSE_S, FINE_S, LONG_S, Claim, Failure, Jobs, NewJob, new_job_id
from omni_jobs.metrics.stage_stats import Histogram, StageStats
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.requests import admit, parse
from omni_jobs.settings import Settings
from omni_jobs.tenants.tenant_store import Tenants

__all__ = ["TENANTS", "fill"]

TENANTS = 100
_DAYS = 30
_PATTERNS = 1000  # jobs that are made as users and workers make them, and then copied
_FAIL, _CANCEL, _WAIT = 30, 10, 10  # of the patterns; the others complete
_VARIANTS = 34  # of the kinds of errors of the patterns, among the copies: about 1,000 kinds
_AT_ONCE = 100
_LINES = 24  # of a job's message
_ACTS = 100_000  # in the audit
_STAGES = ("first", "second")
_TABLES: Sequence[type[Base]] = (JobRow, StageRunRow, AttemptErrorRow, JobLabelRow, EventRow)
_TIMES = {"created_at", "started_at", "finished_at", "queued_at", "at"}
_LATER_S = 3600.0  # than its jobs: nothing of the copies is pruned in this time


def fill(db: Database, settings: Settings, count: int) -> None:
    """Fill a migrated database with about ``count`` jobs of the pipeline echo, samples of its stages, tenants and acts.

    Of a hundred jobs 95 have completed, 3 have failed, 1 is cancelled, and 1 waits. A thousand are submitted, claimed
    and ended as ever. The others are their copies, of earlier times, which the database makes by itself.
    """
    _make_patterns(Jobs(db), settings, min(count, _PATTERNS))
    copies = max(0, -(-count // _PATTERNS) - 1)
    between_s = _DAYS * 86_400.0 / max(1, copies)
    stride = db.read(lambda tx: int(tx.execute(select(func.max(StageRunRow.id))).scalar_one()))
    oldest = db.read(lambda tx: str(tx.execute(select(func.min(JobRow.id))).scalar_one()))
    for number in track(range(1, copies + 1), description=f"{db.dialect}: copying {_PATTERNS} jobs"):
        its_copies = _Copies(number, time.time(), number * between_s, stride, oldest)
        with db.begin() as tx:
            for row in _TABLES:
                its_copies.write(tx, row)
    _make_samples(db)
    _make_acts(db)
    tenants = Tenants(db)
    for number in range(TENANTS):
        tenants.create(_tenant(number))
    with db.begin() as tx:
        tx.execute(text("ANALYZE"))


def _make_patterns(jobs: Jobs, settings: Settings, count: int) -> None:
    pipelines = load_pipelines(settings.resolved_stage_configs)
    for stage in _STAGES:
        jobs.register_worker(worker(pipelines["echo"], stage, 2 * _PATTERNS), LEASE_S)
    lines = "\n".join(f"{number}. Tell me why a quick brown fox would ever jump." for number in range(_LINES))
    body = {"model": "echo", "messages": [{"role": "user", "content": lines}], "metadata": {"app": "night"}}
    admitted = admit(parse(body, settings), pipelines, settings)
    # Those that wait come last, because what is claimed comes in the order of its turns.
    ending, waiting = _new_jobs(admitted, max(1, count - _WAIT)), _new_jobs(admitted, min(_WAIT, count - 1))
    _submit(jobs, ending)
    for job in ending[:_CANCEL]:
        jobs.cancel(job.job_id)
    first = _claimed(jobs, "first", len(ending[_CANCEL:]))
    failing, going_on = first[:_FAIL], first[_FAIL:]
    jobs.report([_failure(claim, number) for number, claim in enumerate(failing)])
    complete(jobs, "worker-of-first", going_on)
    complete(jobs, "worker-of-second", _claimed(jobs, "second", len(going_on)))
    _submit(jobs, waiting)


def _new_jobs(admitted: NewJob, count: int) -> list[NewJob]:
    return [
        replace(admitted, job_id=new_job_id(), tenant=_tenant(number % TENANTS), metadata={"app": f"app-{number % 7}"})
        for number in range(count)
    ]


def _tenant(number: int) -> str:
    return f"tenant-{number:02}"


def _submit(jobs: Jobs, new: Sequence[NewJob]) -> None:
    for start in range(0, len(new), _AT_ONCE):
        for answer in jobs.submit_all(new[start : start + _AT_ONCE]):
            if isinstance(answer, Exception):
                raise answer


def _claimed(jobs: Jobs, stage: str, count: int) -> list[Claim]:
    found: list[Claim] = []
    while len(found) < count:
        claims = jobs.claim(f"worker-of-{stage}", _AT_ONCE).claims
        if not claims:
            raise SystemExit(f"{stage}: {len(found)} claims of {count}")
        found += claims
    return found


def _failure(claim: Claim, number: int) -> Failure:
    word = "".join(chr(ord("a") + int(digit)) for digit in str(number))  # numbers are no part of an error's kind
    error = ModelError(f"the model makes nothing of {word}: its output is not finite", stage=claim.stage)
    return Failure(claim.stage_run_id, claim.attempt, f"worker-of-{claim.stage}", error)


# Copies


@dataclass(frozen=True)
class _Copies:
    """The copies of all patterns, some time before them. ``oldest`` is the first pattern's id."""

    number: int
    began: float
    earlier_s: float
    stride: int  # the ids of rows are so much higher for each number
    oldest: str

    def write(self, tx: Connection, row: type[Base]) -> None:
        """Write the copies of a table's rows."""
        table = cast(Table, row.__table__)
        columns = [column for column in table.columns if not (row is EventRow and column.name == "id")]
        values = select(*(self._value(column).label(column.name) for column in columns))
        if row is AttemptErrorRow:
            values = values.join(StageRunRow, StageRunRow.id == AttemptErrorRow.stage_run_id)
        job_id = {JobRow: JobRow.id, AttemptErrorRow: StageRunRow.job_id}.get(row, table.columns.get("job_id"))
        is_pattern = cast(ColumnElement[str], job_id) >= self.oldest
        tx.execute(insert(table).from_select([column.name for column in columns], values.where(is_pattern)))

    def _value(self, column: Column[Any]) -> ColumnElement[Any]:
        place = (column.table.name, column.name)
        if column.name == "job_id" or place == ("jobs", "id"):
            return literal(f"job-{int((self.began - self.earlier_s) * 1000):012x}") + func.substr(column, 17)
        if place in {("stage_runs", "id"), ("attempt_errors", "stage_run_id")}:
            return column + self.number * self.stride
        if column.name in _TIMES:
            return column - self.earlier_s
        if column.name == "prune_at":
            return column + _LATER_S
        if column.name == "fingerprint":
            return literal(f"{self.number % _VARIANTS:04x}") + func.substr(column, 5)
        return column


# Samples


def _make_samples(db: Database) -> None:
    """Write the samples of a day and of thirty days, as a sampler would have."""
    pick = random.Random(1)  # noqa: S311 — the same in each run
    now = int(time.time())
    rows: list[Mapping[str, Any]] = []
    for step_s, days in ((FINE_S, 1), (COARSE_S, _DAYS), (LONG_S, _DAYS)):
        for stage in _STAGES:
            for at in range(now - now % step_s - days * 86_400, now, step_s):
                rows.append(_sample(stage, step_s, at, pick))
    with db.begin() as tx:
        tx.execute(insert(StageSampleRow), rows)


def _sample(stage: str, step_s: int, at: int, pick: random.Random) -> Mapping[str, Any]:
    ends = pick.randrange(20 * step_s // 10 + 1)
    seconds = Histogram({"0.005": ends // 2, "0.01": ends - ends // 2}, ends * 0.006)
    stats = StageStats(dict.fromkeys(("queue", "load", "run", "store"), seconds), {"completed": ends, "model_error": 1})
    standing = {"queued": pick.randrange(50), "running": pick.randrange(8), "pending": 0, "workers": 1, "loading": 0}
    row = {"step_s": step_s, "pipeline": "echo", "stage": stage, "at": at, "span_s": float(step_s), "slots": 8}
    return {**row, **standing, "stats": stats.to_json()}


def _make_acts(db: Database) -> None:
    """Write what was done to the jobs of all tenants in thirty days."""
    now, step_s = time.time(), _DAYS * 86_400.0 / _ACTS
    rows: list[Mapping[str, Any]] = [
        {
            "id": f"act-{number:016x}{number:016x}",
            "at": now - number * step_s,
            "actor": "anyone",
            "action": ("cancel", "retry", "delete")[number % 3],
            "target": new_job_id(),
            "tenant": _tenant(number % TENANTS),
            "details": {"jobs": 1},
        }
        for number in range(_ACTS)
    ]
    with db.begin() as tx:
        tx.execute(insert(AuditRow), rows)
