"""Which jobs match a filter, the newest first.

One index is walked, downwards by job id: that of a label, of an error's code, of a tenant's jobs in a state, or of a
pipeline's jobs in a state. It serves as many conditions as it can; of a label, an error's code and states it serves the
one that the fewest jobs meet. The others are checked on the jobs that it finds, by their ids. So the cost of a call is
bounded by how many jobs it looks at, however many there are, and few may match: the cursor says where to look on.
"""

import operator
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial, reduce
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Select, Text, bindparam, func, select, union_all

from omni_jobs.database.one_of import one_of
from omni_jobs.database.statement import listed
from omni_jobs.database.tables import JobLabelRow, JobRow, StageRunRow, label_of, state_seen
from omni_jobs.errors import InvalidRequest
from omni_jobs.jobs.read.labelled import ABOVE_ALL, LabelledJobs
from omni_jobs.jobs.values import JobFilter, Matches
from omni_jobs.new_job import first_job_id
from omni_jobs.states import JobState, StageRunState

LOOKED_AT: Final = 5_000
"""The most jobs that one call looks at where the index does not serve all conditions."""

LOOKED_FOR_S: Final = 0.15
"""After which time a call looks at no more jobs: a database that reads from a slow disk takes long for each."""

_FIRST_LOOK, _LONGEST_LOOK = 200, 1_000  # jobs; each look is twice as long as the one before
_MOST_TENANTS = 100  # whose jobs with a label are merged
_COUNTED = 20_000  # the most jobs that are counted to choose an index, which takes milliseconds
_AT_STAGE = (StageRunState.QUEUED, StageRunState.RUNNING, StageRunState.FAILED)
_JOBS_AT_STAGES = {JobState.QUEUED, JobState.IN_PROGRESS, JobState.CANCELLING, JobState.FAILED}
"""The states of jobs that may have a stage run in _AT_STAGE."""

_ids = bindparam("ids", type_=Text)
_Walk = Callable[[str | None, int], Sequence[str]]
"""Returns the newest ids below a cursor, at most so many. Each call has the cursor of the one before or a lower one."""


def matching(tx: Connection, wanted: JobFilter, limit: int, cursor: str | None = None) -> Matches:
    """Return at most ``limit`` jobs that match, all older than the ``cursor``.

    Fewer with a cursor: these are all that match among the jobs that were looked at, LOOKED_AT at most, or as many as
    were in LOOKED_FOR_S. Raises InvalidRequest, which names a value that is malformed, and ``tenant`` where too many
    tenants' jobs have a label.
    """
    _check(wanted, cursor)
    states = _possible_states(wanted)
    if not states:
        return Matches([], None)
    until = time.monotonic() + LOOKED_FOR_S
    walk, checks = _plan(tx, wanted, states)
    found: list[str] = []
    looked_at, look = 0, limit if not checks else _FIRST_LOOK
    while True:
        ids = walk(cursor, look + 1)
        page = ids[:look]
        found += _kept(tx, page, checks)
        if len(found) > limit or (len(found) == limit and len(ids) > look):
            return Matches(found[:limit], found[limit - 1])
        if len(ids) <= look:
            return Matches(found, None)
        cursor, looked_at = page[-1], looked_at + look
        if looked_at >= LOOKED_AT or time.monotonic() > until:
            return Matches(found, cursor)
        look = min(2 * look, _LONGEST_LOOK, LOOKED_AT - looked_at)


def _check(wanted: JobFilter, cursor: str | None) -> None:
    """Raise InvalidRequest for a text that PostgreSQL would refuse."""
    if cursor is not None and not (cursor.startswith("job-") and cursor.isprintable()):
        raise InvalidRequest("not a cursor of this API", field="cursor")
    names = {
        "pipeline": wanted.pipeline,
        "version": wanted.version,
        "stage": wanted.stage,
        "error_code": wanted.error_code,
    }
    for field, name in {**names, "tenant": wanted.tenant}.items():
        if name is not None and not name.isprintable():
            raise InvalidRequest("not a printable name", field=field)


def _possible_states(wanted: JobFilter) -> list[JobState]:
    """Return the states that a matching job can be in, in their usual order."""
    states: Set[JobState] = set(JobState) if wanted.states is None else wanted.states
    return [each for each in JobState if each in states and (wanted.stage is None or each in _JOBS_AT_STAGES)]


@dataclass(frozen=True)
class _Bounds:
    """The bounds of the ids: those of a time. A cursor is another."""

    after: float | None
    before: float | None

    @property
    def least(self) -> str:
        """The lowest id."""
        return "" if self.after is None else first_job_id(self.after)

    @property
    def below(self) -> str:
        """The id below which all are."""
        return ABOVE_ALL if self.before is None else first_job_id(self.before)

    def newest(self, cursor: str | None, at_most: int, *conditions: ColumnElement[bool]) -> Select[str]:
        """Select the newest ``at_most`` ids of jobs within the bounds, for which the conditions hold."""
        job_id = JobRow.id
        newest = select(job_id.label("id")).where(*conditions).order_by(job_id.desc()).limit(at_most)
        if cursor is not None or self.before is not None:
            newest = newest.where(job_id < min(self.below, cursor or ABOVE_ALL))
        if self.after is not None:
            newest = newest.where(job_id >= self.least)
        return newest


class _Served(Enum):
    """The condition that the walked index serves."""

    LABEL = auto()
    ERROR = auto()
    STATES = auto()
    NONE = auto()


def _plan(tx: Connection, wanted: JobFilter, states: Sequence[JobState]) -> tuple[_Walk, Sequence[Select[str]]]:
    """Return the walk, and the queries that leave of ``:ids`` those that match the conditions it does not serve.

    The conditions of a check are written so that no index but that of the ids serves.
    """
    bounds = _Bounds(wanted.created_after, wanted.created_before)
    job = JobRow
    of_tenant = () if wanted.tenant is None else (job.tenant == wanted.tenant,)
    in_states = None if len(states) == len(JobState) else _is_one_of(job.state, states)
    has_error = None if wanted.error_code is None else job.error_code.concat("") == wanted.error_code
    of_pipeline = None if wanted.pipeline is None else job.pipeline.concat("") == wanted.pipeline
    labels = _rarest_first(tx, {label_of(name, value) for name, value in wanted.metadata}, wanted.tenant)
    served = _served(tx, wanted, states, labels)
    left: list[ColumnElement[bool] | None] = [in_states, has_error, of_pipeline]
    lines: list[tuple[ColumnElement[bool], ...]] = [()]
    if served is _Served.LABEL:
        label, *labels = labels
        tenants = _tenants_with(tx, label) if wanted.tenant is None else [wanted.tenant]
        walk: _Walk = LabelledJobs(tx, label, tenants, bounds.least, bounds.below).newest
    else:
        if served is _Served.ERROR:
            left, lines = [in_states, of_pipeline], [(job.error_code == wanted.error_code, *of_tenant)]
        elif wanted.tenant is not None:
            left = [has_error, of_pipeline]
            lines = [(*of_tenant, job.state == state.value) for state in states]
        elif wanted.pipeline is not None or served is _Served.STATES:
            left = [has_error]
            lines = [
                (job.state == state.value, job.pipeline == pipeline)
                for state in states
                for pipeline in ([wanted.pipeline] if wanted.pipeline is not None else _pipelines_with(tx, state))
            ]
        walk = partial(_newest_of, tx, bounds, lines)
    if wanted.version is not None:
        left.append(job.pipeline_version.concat("") == wanted.version)
    if wanted.except_tenants:
        left.append(job.tenant.not_in(sorted(wanted.except_tenants)))
    conditions = [condition for condition in left if condition is not None]
    checks = [select(job.id).where(one_of(job.id, _ids), *conditions)] if conditions else []
    checks += [_with_label(label) for label in labels]
    return walk, checks if wanted.stage is None else [*checks, _at_stage(wanted.stage)]


def _served(tx: Connection, wanted: JobFilter, states: Sequence[JobState], labels: Sequence[str]) -> _Served:
    """Return the condition that an index is to serve. Of several it is that which the fewest jobs meet."""
    of_label = [] if wanted.tenant is None else [JobLabelRow.tenant == wanted.tenant]
    of_tenant = [] if wanted.tenant is None else [JobRow.tenant == wanted.tenant]
    having: dict[_Served, Sequence[Select[str]]] = {}
    if labels:
        having[_Served.LABEL] = [select(JobLabelRow.job_id).where(JobLabelRow.label == labels[0], *of_label)]
    if wanted.error_code is not None:
        having[_Served.ERROR] = [select(JobRow.id).where(JobRow.error_code == wanted.error_code, *of_tenant)]
    if len(states) < len(JobState):
        having[_Served.STATES] = [select(JobRow.id).where(JobRow.state == each.value, *of_tenant) for each in states]
    if len(having) < 2:
        return next(iter(having), _Served.NONE)
    return min(having, key=lambda each: min(_COUNTED, sum(_count(tx, query) for query in having[each])))


def _newest_of(
    tx: Connection,
    bounds: _Bounds,
    lines: Sequence[tuple[ColumnElement[bool], ...]],
    cursor: str | None,
    at_most: int,
) -> Sequence[str]:
    """Return the newest ids of jobs for which the conditions of one of the lines hold."""
    parts = [bounds.newest(cursor, at_most, *line) for line in lines]
    if len(parts) == 1:
        return tx.execute(parts[0]).scalars().all()
    several = union_all(*(select(part.c.id) for part in (each.subquery() for each in parts)))
    return sorted(tx.execute(several).scalars(), reverse=True)[:at_most]


def _kept(tx: Connection, ids: Sequence[str], checks: Sequence[Select[str]]) -> Sequence[str]:
    """Return those of the ids that pass all checks, in their order."""
    for check in checks:
        if not ids:
            break
        passed = set(tx.execute(check, {"ids": listed(ids)}).scalars())
        ids = [each for each in ids if each in passed]
    return ids


def _with_label(label: str) -> Select[str]:
    return select(JobLabelRow.job_id).where(one_of(JobLabelRow.job_id, _ids), JobLabelRow.label.concat("") == label)


def _at_stage(stage: str) -> Select[str]:
    run = StageRunRow
    is_there = _is_one_of(run.state, _AT_STAGE)
    return select(run.job_id).where(one_of(run.job_id, _ids), run.stage.concat("") == stage, is_there)


def _is_one_of(column: Any, states: Iterable[JobState | StageRunState]) -> ColumnElement[bool]:
    return reduce(operator.or_, (state_seen(column, state) for state in states))


def _rarest_first(tx: Connection, labels: Collection[str], tenant: str | None) -> list[str]:
    """Return the labels, those of fewer jobs first; of those of more than _COUNTED jobs, any."""
    if len(labels) < 2:
        return list(labels)

    def count(label: str) -> int:
        having = select(JobLabelRow.job_id).where(JobLabelRow.label == label)
        return _count(tx, having if tenant is None else having.where(JobLabelRow.tenant == tenant))

    return sorted(sorted(labels), key=count)


def _count(tx: Connection, query: Select[str]) -> int:
    """Return how many rows a query finds, _COUNTED at most."""
    return int(tx.execute(select(func.count()).select_from(query.limit(_COUNTED).subquery())).scalar_one())


def _tenants_with(tx: Connection, label: str) -> Collection[str]:
    """Return the tenants with jobs that have this label, or [""] if there are none. Raises InvalidRequest."""
    found = list(_steps(tx, JobLabelRow.tenant, JobLabelRow.label == label, _MOST_TENANTS + 1))
    if len(found) > _MOST_TENANTS:
        raise InvalidRequest(f"name one: jobs of more than {_MOST_TENANTS} tenants have these metadata", field="tenant")
    return found or [""]


def _pipelines_with(tx: Connection, state: JobState) -> Collection[str]:
    """Return the names of the pipelines with jobs in this state, or [""] if there are none."""
    return list(_steps(tx, JobRow.pipeline, JobRow.state == state.value)) or [""]


def _steps(tx: Connection, column: Any, condition: ColumnElement[bool], at_most: int | None = None) -> Iterator[str]:
    """Yield the values of a column that follows in an index on that of the condition.

    Each step of the recursion finds the next value in the index, instead of reading an entry for every job.
    """
    values = select(func.min(column).label("value")).where(condition).cte("steps", recursive=True)
    following = select(func.min(column)).where(condition, column > values.c.value).scalar_subquery()
    values = values.union_all(select(following).where(values.c.value.is_not(None)))
    query = select(values.c.value).where(values.c.value.is_not(None)).limit(at_most)
    yield from tx.execute(query).scalars()
