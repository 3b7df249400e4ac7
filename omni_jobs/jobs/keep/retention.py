"""Retention: how long each kind of data of an ended job is kept. Pure policy; ``prune`` applies it.

A completed job keeps no payloads, unless its request asked for it: they go with its end, but for those of attempts
that were lost.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

from sqlalchemy import ColumnElement, and_, exists, or_

from omni_jobs.database.statement import AnyRow
from omni_jobs.database.tables import JobRow, KeepingJobRow
from omni_jobs.settings import Settings
from omni_jobs.states import JobState

KINDS: Final = ("payloads", "inputs", "artifacts")
"""The data of an ended job that may go before its row. Of each a column ``…_gone`` says whether they are deleted."""

_is_keeping = exists().where(KeepingJobRow.job_id == JobRow.id)
KEEPS_PAYLOADS: Final = _is_keeping.label("keeps_payloads")
"""The column of a query of jobs that says which of them keep their payloads."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long the pruner leaves each kind of data, in seconds after the end of its job."""

    payloads_s: float  # of jobs that did not complete, and of those that keep their payloads
    inputs_s: float
    artifacts_s: float
    events_s: float  # since they were written
    jobs_s: float

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the retention that the settings ``keep_…_s`` give."""
        return cls(
            payloads_s=settings.keep_payloads_s,
            inputs_s=settings.keep_inputs_s,
            artifacts_s=settings.keep_artifacts_s,
            events_s=settings.keep_events_s,
            jobs_s=settings.keep_jobs_s,
        )

    @property
    def without_payloads_s(self) -> float:
        """The seconds from the end of a job that leaves no payloads until there is something to prune."""
        return min(self.inputs_s, self.artifacts_s, self.jobs_s)

    def due(self, job: AnyRow) -> dict[str, float]:
        """Return when an ended job's data are due, in seconds since 1970, by those of KINDS that are not gone."""
        keeps_none = job.state == JobState.COMPLETED.value and not job.keeps_payloads
        payloads_s = 0.0 if keeps_none else self.payloads_s
        kept_s = dict(zip(KINDS, (payloads_s, self.inputs_s, self.artifacts_s), strict=True))
        return {kind: job.finished_at + kept_s[kind] for kind in KINDS if not getattr(job, f"{kind}_gone")}

    def is_due(self, at: float) -> ColumnElement[bool]:
        """Return the SQL condition that an ended job has something which is due at this time."""
        is_completed = JobRow.state.concat("") == JobState.COMPLETED.value  # no index of states serves it
        keeps_none = and_(is_completed, ~_is_keeping)
        kept = (
            (JobRow.payloads_gone, or_(keeps_none, JobRow.finished_at <= at - self.payloads_s)),
            (JobRow.inputs_gone, JobRow.finished_at <= at - self.inputs_s),
            (JobRow.artifacts_gone, JobRow.finished_at <= at - self.artifacts_s),
        )
        return or_(JobRow.finished_at <= at - self.jobs_s, *(and_(gone.is_(False), is_over) for gone, is_over in kept))


def leaves_no_payloads(state: JobState, attempts: Iterable[int]) -> bool:
    """Return whether nothing of a job's payloads can be in the store after its end in this state.

    ``attempts`` are those of its stage runs. An attempt that was lost may have left a payload that nobody knows of.
    """
    return state == JobState.COMPLETED and all(attempt <= 1 for attempt in attempts)
