"""``LabelledJobs``: the jobs of several tenants that have a label, merged by id, the newest first.

The index of labels has each tenant's jobs in a line of their own. The lines are read piece by piece, those that are due
by one statement, so that about as many ids are read as are asked for, and not as many of every tenant.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import Connection

from omni_jobs.database.statement import Statements, listed

_sql = Statements(__file__)

ABOVE_ALL: Final = "k"
"""Sorts behind every job's id."""
_LEAST_READ: Final = 8  # of a line at once


@dataclass(slots=True)
class _TenantsIds:
    """A tenant's jobs. ``ids`` are read and not passed yet, the newest first; those below ``below`` are not read."""

    tenant: str
    below: str
    ids: list[str] = field(default_factory=list)
    has_more: bool = True


class LabelledJobs:
    """The jobs of these tenants that have a label, with ids in [least, below)."""

    def __init__(self, tx: Connection, label: str, tenants: Iterable[str], least: str, below: str) -> None:
        self._tx = tx
        self._label = label
        self._least = least
        self._lines = [_TenantsIds(tenant, below) for tenant in tenants]

    def newest(self, cursor: str | None, at_most: int) -> Sequence[str]:
        """Return the newest ids below the cursor, which is the same as in the call before or lower."""
        if cursor is not None:
            for line in self._lines:
                line.ids = [each for each in line.ids if each < cursor]
                line.below = min(line.below, cursor)
        unread = sum(line.has_more for line in self._lines)
        share = max(_LEAST_READ, 2 * at_most // max(1, unread))
        piece = share
        while True:
            # Of the ids down to this one all are known.
            floor = max((line.below for line in self._lines if line.has_more), default="")
            known = [each for line in self._lines for each in line.ids if each >= floor]
            if len(known) >= at_most or not floor:
                return sorted(known, reverse=True)[:at_most]
            due = [
                line for line in self._lines if line.has_more and (line.below == floor or len(line.ids) < share // 2)
            ]
            self._read(due, min(piece, at_most))
            piece *= 2  # of a tenant that has most of the jobs, more each time

    def _read(self, lines: Sequence[_TenantsIds], most: int) -> None:
        found: dict[str, list[str]] = defaultdict(list)
        given = listed({"tenant": line.tenant, "below": line.below} for line in lines)
        parameters = {"label": self._label, "lines": given, "least": self._least, "most": str(most)}
        for tenant, job_id in _sql["newest"].rows(self._tx, parameters):
            found[tenant].append(job_id)
        for line in lines:
            ids = sorted(found[line.tenant], reverse=True)
            line.ids += ids
            line.has_more = len(ids) == most
            line.below = ids[-1] if ids else line.below
