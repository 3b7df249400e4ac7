"""Pages of jobs, the newest first. A page is limited in jobs and in bytes."""

import operator
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Connection,
    Integer,
    Select,
    Text,
    bindparam,
    func,
    select,
    union_all,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from omni_jobs.database.one_of import one_of
from omni_jobs.database.statement import listed
from omni_jobs.database.tables import AttemptErrorRow, JobRow, StageRunRow, state_seen
from omni_jobs.errors import InvalidRequest
from omni_jobs.jobs.read.job_view import views_of
from omni_jobs.states import JobState
from omni_jobs.views import Page

_LONGEST_PAGE = 100
_PAGE_BYTES = 2 << 20  # of its jobs' texts, JSON as it is stored; a page holds one job even if that has more
_FIRST_SIZES = 8
"""Jobs whose sizes the first query reads. Each further query reads twice as many, because SQLite reads a whole text
to tell its length."""

_ids = bindparam("ids", type_=Text)


class _stored_bytes(FunctionElement[int]):
    """The bytes of a JSON column, which is ASCII. PostgreSQL does not read the text to tell them."""

    type = Integer()
    inherit_cache = True
    name = "stored_bytes"


@compiles(_stored_bytes)
def _function_of_bytes(element: _stored_bytes, compiler: Any, **options: Any) -> str:
    function = "length" if compiler.dialect.name == "sqlite" else "octet_length"
    return f"{function}({compiler.process(element.clauses, **options)})"


def _sizes(brief: bool) -> CompoundSelect[Any]:
    """Build the query for (job id, bytes) of the texts that a page shows of each job; several rows for a job."""

    def total(*columns: Any) -> ColumnElement[int]:
        parts = (func.coalesce(func.sum(_stored_bytes(column)), 0) for column in columns)
        return reduce(operator.add, parts)

    results = [] if brief else [StageRunRow.result]
    of_job = select(JobRow.id.label("job_id"), total(JobRow.user_metadata, JobRow.error).label("bytes"))
    of_runs = select(StageRunRow.job_id, total(*results, StageRunRow.progress, StageRunRow.warnings))
    of_errors = select(StageRunRow.job_id, total(AttemptErrorRow.error)).join_from(
        StageRunRow, AttemptErrorRow, AttemptErrorRow.stage_run_id == StageRunRow.id
    )
    return union_all(
        of_job.where(one_of(JobRow.id, _ids)).group_by(JobRow.id),
        of_runs.where(one_of(StageRunRow.job_id, _ids)).group_by(StageRunRow.job_id),
        of_errors.where(one_of(StageRunRow.job_id, _ids)).group_by(StageRunRow.job_id),
    )


# Built once, because SQLAlchemy would visit every part of them with every call.
_SIZES = {brief: _sizes(brief) for brief in (False, True)}


def job_list(
    tx: Connection,
    limit: int = 20,
    cursor: str | None = None,
    state: JobState | None = None,
    pipeline: str | None = None,
    error_code: str | None = None,
    brief: bool = False,
    tenant: str | None = None,
) -> Page:
    """Return a page of at most ``limit`` (1 to 100) jobs that match all filters, the newest first.

    ``state``, ``pipeline``, ``error_code`` and ``tenant`` are the filters (None: any). ``cursor`` is the
    ``next_cursor`` of the page before. A page ends early, with its cursor, where the texts of its jobs come to 2 MiB.
    The jobs of a ``brief`` page have no results. Raises InvalidRequest, which names a value that is out of range or
    malformed.
    """
    if not 1 <= limit <= _LONGEST_PAGE:
        raise InvalidRequest(f"must be 1 to {_LONGEST_PAGE}", field="limit")
    if cursor is not None and not (cursor.startswith("job-") and cursor.isprintable()):
        raise InvalidRequest("not a cursor of this API", field="cursor")
    if pipeline is not None and not pipeline.isprintable():
        raise InvalidRequest("not a pipeline's name", field="pipeline")
    if error_code is not None and not error_code.isprintable():
        raise InvalidRequest("not an error's code", field="error_code")
    newest = select(JobRow.id).order_by(JobRow.id.desc()).limit(limit + 1)
    if cursor is not None:
        newest = newest.where(JobRow.id < cursor)
    if tenant is not None:
        newest = newest.where(JobRow.tenant == tenant)
    query: Select[str] | CompoundSelect[str]
    if error_code is not None:
        query = _with_error(newest, error_code, state, pipeline)
    elif tenant is not None:
        query = _merged_of_tenant(newest, pipeline, JobState if state is None else [state])
    elif pipeline is not None:
        query = _merged(newest, [pipeline], JobState if state is None else [state])
    elif state is not None:
        query = _merged(newest, _pipelines_with(tx, state), [state])
    else:
        query = newest
    ids = sorted(tx.execute(query).scalars(), reverse=True)[: limit + 1]
    shown = _fitting(tx, ids[:limit], brief)
    return Page(jobs=views_of(tx, shown, brief), next_cursor=shown[-1] if len(shown) < len(ids) else None)


def _fitting(tx: Connection, ids: Sequence[str], brief: bool) -> Sequence[str]:
    """Return the first of these jobs whose texts fit on a page, one at least."""
    total, start, count = 0, 0, _FIRST_SIZES
    while start < len(ids):
        part = ids[start : start + count]
        sizes: dict[str, int] = defaultdict(int)
        for job_id, size in tx.execute(_SIZES[brief], {"ids": listed(part)}):
            sizes[job_id] += int(size)
        for number, job_id in enumerate(part, start):
            total += sizes[job_id]
            if total > _PAGE_BYTES and number > 0:
                return ids[:number]
        start, count = start + count, count * 2
    return ids


def _with_error(newest: Select[str], error_code: str, state: JobState | None, pipeline: str | None) -> Select[str]:
    """Keep the jobs with this error. The other conditions are written so that no index but the error's serves."""
    newest = newest.where(JobRow.error_code == error_code)
    if state is not None:
        newest = newest.where(state_seen(JobRow.state, state))
    if pipeline is not None:
        newest = newest.where(JobRow.pipeline.concat("") == pipeline)
    return newest


def _merged_of_tenant(newest: Select[str], pipeline: str | None, states: Iterable[JobState]) -> CompoundSelect[str]:
    """Select the newest jobs of a tenant in each state. The pipeline is read in the tenant's index, and serves none."""
    if pipeline is not None:
        newest = newest.where(JobRow.pipeline.concat("") == pipeline)
    parts = [newest.where(JobRow.state == state.value).subquery() for state in states]
    return union_all(*(select(part.c.id) for part in parts))


def _merged(newest: Select[str], pipelines: Iterable[str], states: Iterable[JobState]) -> CompoundSelect[str]:
    """Select the newest jobs of each pipeline in each state: those lie together in the index."""
    parts = [
        newest.where(JobRow.state == state.value, JobRow.pipeline == pipeline).subquery()
        for pipeline in pipelines
        for state in states
    ]
    return union_all(*(select(part.c.id) for part in parts))


def _pipelines_with(tx: Connection, state: JobState) -> list[str]:
    """Return the names of the pipelines with jobs in this state, or [""] if there are none.

    Each step of the recursion finds the next name in the index, instead of reading an entry for every job.
    """
    in_state = JobRow.state == state.value
    names = select(func.min(JobRow.pipeline).label("name")).where(in_state).cte("names", recursive=True)
    following = select(func.min(JobRow.pipeline)).where(in_state, JobRow.pipeline > names.c.name).scalar_subquery()
    names = names.union_all(select(following).where(names.c.name.is_not(None)))
    return list(tx.execute(select(names.c.name).where(names.c.name.is_not(None))).scalars()) or [""]
