"""The tally of a stream of numbered jobs, from what SQL holds alone: accepted, ended, lost, doubled.

The jobs of a stream have its label, and in their metadata their numbers, from 1. Whoever submits them sends a number
only once the one before is accepted, and sends each again until it is. So a number that is lacking below the highest
one belongs to a job that was accepted and is gone.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Text, bindparam, func, select

from omni_jobs.database.clock import as_datetime, now
from omni_jobs.database.one_of import one_of
from omni_jobs.database.statement import AnyRow, listed
from omni_jobs.database.tables import AttemptErrorRow, EventRow, JobLabelRow, JobRow, StageRunRow, label_of
from omni_jobs.states import JobState, StageRunState

NUMBER: Final = "number"
"""The name of the metadata that number the jobs of a stream."""
MOST_TALLIED: Final = 1_000
"""The most jobs of a stream that are counted; of more the oldest."""
LOST_AFTER_S: Final = 60.0
"""A job that has not ended counts as lost once nothing was heard of it for so long."""

_ids = bindparam("ids", type_=Text)
_JOBS = (
    select(
        JobRow.id,
        JobRow.state,
        JobRow.user_metadata.label("labels"),
        JobRow.retries,
        JobRow.created_at,
        JobRow.finished_at,
    )
    .join(JobLabelRow, JobLabelRow.job_id == JobRow.id)
    .where(JobLabelRow.label == bindparam("label"))
    .order_by(JobRow.id)
    .limit(MOST_TALLIED)
)
_JOBS_OF_TENANT = _JOBS.where(JobLabelRow.tenant == bindparam("tenant"))
_RUNS = select(
    StageRunRow.id,
    StageRunRow.job_id,
    StageRunRow.state,
    StageRunRow.attempt,
    StageRunRow.usage,
    StageRunRow.queued_at,
    StageRunRow.started_at,
    StageRunRow.finished_at,
).where(one_of(StageRunRow.job_id, _ids))
_ERRORS = select(AttemptErrorRow.stage_run_id, AttemptErrorRow.attempt, AttemptErrorRow.at).where(
    one_of(AttemptErrorRow.stage_run_id, _ids)
)
_ENDS = (
    select(EventRow.job_id, func.count().label("n"))
    .where(one_of(EventRow.job_id, _ids), EventRow.type.in_([f"job.{each}" for each in JobState if each.is_final]))
    .group_by(EventRow.job_id)
)


class TalliedJob(NamedTuple):
    """A job of a stream. ``heard_at`` is when something of it was last accepted, queued, begun or ended."""

    job_id: str
    number: int
    state: JobState
    created_at: datetime
    finished_at: datetime | None
    heard_at: datetime


class Tally(NamedTuple):
    """What has become of a stream's jobs.

    jobs      those that SQL has, the oldest first
    ended     of them, those in a final state
    lost      numbers that were accepted and have no job, and jobs of which nothing was heard for LOST_AFTER_S
    doubled   ends that were recorded twice, of a job or of an attempt, and numbers that have two jobs, one by one
    attempts  that were lost with a worker, or ended in another error, and were made again or ended their jobs
    """

    jobs: Sequence[TalliedJob]
    ended: int
    lost: int
    doubled: int
    attempts: int

    @property
    def accepted(self) -> int:
        """The number of jobs that SQL has."""
        return len(self.jobs)


def tally(tx: Connection, name: str, value: str, tenant: str | None = None) -> Tally:
    """Return the tally of the stream whose jobs have this name and value in their metadata, of all tenants or of one.

    Jobs that somebody deletes count as lost, because nothing tells that they were there.
    """
    label = {"label": label_of(name, value)}
    rows = tx.execute(_JOBS, label) if tenant is None else tx.execute(_JOBS_OF_TENANT, {**label, "tenant": tenant})
    jobs = rows.all()
    names = {"ids": listed([job.id for job in jobs])}
    runs = tx.execute(_RUNS, names).all()
    errors = tx.execute(_ERRORS, {"ids": listed([run.id for run in runs])}).all()
    ends = {row.job_id: row.n for row in tx.execute(_ENDS, names)}
    heard = _heard_at(jobs, runs, errors)
    tallied = [
        TalliedJob(
            job.id,
            _number(job.labels),
            JobState(job.state),
            as_datetime(job.created_at),
            None if job.finished_at is None else as_datetime(job.finished_at),
            as_datetime(heard[job.id]),
        )
        for job in jobs
    ]
    at: float = tx.execute(select(now())).scalar_one()
    silent = sum(1 for job in jobs if not JobState(job.state).is_final and heard[job.id] < at - LOST_AFTER_S)
    return Tally(
        tallied,
        ended=sum(1 for job in tallied if job.state.is_final),
        lost=_lacking(tallied) + silent,
        doubled=_doubled_jobs(jobs, tallied, ends) + _doubled_attempts(runs, errors),
        attempts=len(errors),
    )


def _number(metadata: Mapping[str, Any]) -> int:
    text = str(metadata.get(NUMBER, ""))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _heard_at(jobs: Sequence[AnyRow], runs: Sequence[AnyRow], errors: Sequence[AnyRow]) -> Mapping[str, float]:
    """Return when something was last heard of each job."""
    job_of = {run.id: run.job_id for run in runs}
    heard = {job.id: job.created_at for job in jobs}
    for run in runs:
        times = (run.queued_at, run.started_at, run.finished_at)
        heard[run.job_id] = max([heard[run.job_id], *(time for time in times if time is not None)])
    for error in errors:
        heard[job_of[error.stage_run_id]] = max(heard[job_of[error.stage_run_id]], error.at)
    return heard


def _lacking(jobs: Sequence[TalliedJob]) -> int:
    """Return how many numbers are lacking below the highest one."""
    numbers = {job.number for job in jobs} - {0}
    return max(numbers, default=0) - len(numbers)


def _doubled_jobs(jobs: Sequence[AnyRow], tallied: Sequence[TalliedJob], ends: Mapping[str, int]) -> int:
    """Return how many jobs have the number of another one, and how many ends were recorded of jobs that had ended."""
    numbers = Counter(job.number for job in tallied if job.number)
    again: int = sum(max(0, ends.get(job.id, 0) - 1 - job.retries) for job in jobs)
    return numbers.total() - len(numbers) + again


def _doubled_attempts(runs: Sequence[AnyRow], errors: Sequence[AnyRow]) -> int:
    """Return how many attempts have both a result and an error, and how many ends were recorded beyond the attempts."""
    failed: dict[int, set[int]] = defaultdict(set)
    for error in errors:
        failed[error.stage_run_id].add(error.attempt)
    both: int = sum(1 for run in runs if run.state == StageRunState.SUCCEEDED and run.attempt in failed[run.id])
    beyond: int = sum(max(0, int((run.usage or {}).get("attempts", 0)) - run.attempt) for run in runs)
    return both + beyond
