"""Advance jobs: bring those that nobody has started to the front of their tenant's line.

A line here is the waiting jobs of a tenant, a pipeline and a priority, in the order of their turns. The jobs of a line
change their turns among each other, and no turn is made or lost, so other tenants wait for no job longer than before.
Each job that stood before an advanced one lies a place further back for it. Of jobs that their tenant's quota holds the
order of being let in is changed in the same way.

The row of a tenant's turns is locked first, as by a submit, so that of two that advance one comes after the other.
Stage runs that others have locked are passed over with their jobs, because who waited for them could meet who waits for
these. The tenants' rows are locked last, and in the order of their names (``omni_jobs.jobs.order.quota``).
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final, NamedTuple

from sqlalchemy import Connection

from omni_jobs.database.audit import Act
from omni_jobs.database.statement import Statements, listed

_sql = Statements(__file__)
_SET_TURN = _sql.bulk("set_turn", "job_id turn")
_SET_HELD_TURN = _sql.bulk("set_held_turn", "job_id turn")

MOST_BEFORE: Final = 5_000
"""The most jobs of a line that are looked at, the oldest. One that is younger than so many others stays."""


class _Line(NamedTuple):
    pipeline: str
    tenant: str
    priority: str


def advance(tx: Connection, job_ids: Sequence[str], act: Act | None = None) -> set[str]:
    """Bring those of these jobs that are queued to the front of their lines, in the order that they have among them.

    Return the ids of those that stand there now. Left out are jobs that have begun or ended, that another transaction
    changes at this moment, and that have more than ``MOST_BEFORE`` others before them.
    """
    lines: dict[_Line, set[str]] = {}
    for job_id, pipeline, tenant, priority in _sql["queued_jobs"].rows(tx, {"ids": listed(job_ids)}):
        lines.setdefault(_Line(pipeline, tenant, priority), set()).add(job_id)
    in_order = sorted(lines)
    for line in in_order:
        _sql["lock_turns"].rows(tx, {"pipeline": line.pipeline, "tenant": line.tenant})
    advanced: set[str] = set()
    for line in in_order:
        turns = _turns_of(tx, line)
        _SET_TURN.run(tx, _changed(turns, lines[line]))
        advanced |= turns.keys() & lines[line]
    for tenant, priority in sorted({(line.tenant, line.priority) for line in lines}):
        chosen = {job_id for line, ids in lines.items() if line[1:] == (tenant, priority) for job_id in ids} - advanced
        if chosen:
            _sql["lock_tenant"].rows(tx, {"tenant": tenant})
            wanted = {"tenant": tenant, "priority": priority, "at_most": str(MOST_BEFORE)}
            held: dict[str, int] = dict(_sql["held_jobs"].rows(tx, wanted))
            _SET_HELD_TURN.run(tx, _changed(held, chosen))
            advanced |= held.keys() & chosen
    if act is not None and advanced:
        tenants, in_order_of_age = {line.tenant for line in lines}, sorted(advanced)
        act.note(tx, in_order_of_age[0], tenants.pop() if len(tenants) == 1 else None, job_ids=in_order_of_age)
    return advanced


def _turns_of(tx: Connection, line: _Line) -> dict[str, int]:
    """Return the turns of the jobs of a line whose stage runs are all free, and lock these."""
    wanted = {**line._asdict(), "at_most": str(MOST_BEFORE)}
    runs_of: dict[str, int] = dict(_sql["line"].rows(tx, wanted))
    found: dict[str, list[int]] = {}
    for job_id, turn in _sql["free_runs"].rows(tx, {"ids": listed(runs_of)}):
        found.setdefault(job_id, []).append(turn)
    return {job_id: turns[0] for job_id, turns in found.items() if len(turns) == runs_of[job_id]}


def _changed(turns: Mapping[str, int], chosen: Set[str]) -> list[tuple[str, int]]:
    """Return the jobs whose turns change, each with its new one, so that the chosen ones stand before the others."""

    def in_order(job_ids: Iterable[str]) -> list[str]:
        return sorted(job_ids, key=lambda job_id: (turns[job_id], job_id))

    order = in_order(turns.keys() & chosen) + in_order(turns.keys() - chosen)
    given = zip(order, sorted(turns.values()), strict=True)
    return [(job_id, turn) for job_id, turn in given if turn != turns[job_id]]
