"""Pages of jobs, the newest first. A page is limited in jobs and in bytes."""

import operator
from collections import defaultdict
from collections.abc import Sequence
from functools import reduce
from typing import Any, Final

from sqlalchemy import ColumnElement, CompoundSelect, Connection, Integer, Text, bindparam, func, select, union_all
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from omni_jobs.database.one_of import one_of
from omni_jobs.database.statement import listed
from omni_jobs.database.tables import AttemptErrorRow, JobRow, StageRunRow
from omni_jobs.errors import InvalidRequest
from omni_jobs.jobs.read.job_view import views_of
from omni_jobs.jobs.read.matching import matching
from omni_jobs.jobs.values import JobFilter
from omni_jobs.views import Page

_LONGEST_PAGE = 100
_PAGE_BYTES = 2 << 20  # of its jobs' texts, JSON as it is stored; a page holds one job even if that has more
_FIRST_SIZES = 8
"""Jobs whose sizes the first query reads. Each further query reads twice as many, because SQLite reads a whole text
to tell its length."""

ALL: Final = JobFilter()
"""Which all jobs match."""

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
    tx: Connection, wanted: JobFilter = ALL, limit: int = 20, cursor: str | None = None, brief: bool = False
) -> Page:
    """Return a page of at most ``limit`` (1 to 100) jobs that match the filter, the newest first.

    ``cursor`` is the ``next_cursor`` of the page before. A page ends early, with its cursor, where the texts of its
    jobs come to 2 MiB, and where ``matching`` looks at no more jobs, even if none has matched. The jobs of a ``brief``
    page have no results. Raises InvalidRequest, which names a value that is out of range or malformed.
    """
    if not 1 <= limit <= _LONGEST_PAGE:
        raise InvalidRequest(f"must be 1 to {_LONGEST_PAGE}", field="limit")
    ids, next_cursor = matching(tx, wanted, limit, cursor)
    shown = _fitting(tx, ids, brief)
    return Page(jobs=views_of(tx, shown, brief), next_cursor=shown[-1] if len(shown) < len(ids) else next_cursor)


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
