"""Take turns: give jobs that are submitted together their turns, and store each tenant's last turns in SQL."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from omni_jobs.database.statement import Statements, execute_pipelined, listed
from omni_jobs.jobs.order.quota import WEIGHTS_AND_LIMITS, running_limit
from omni_jobs.jobs.order.turns import Lines
from omni_jobs.jobs.order.virtual_times import Wish, turn_of, virtual_times

_sql = Statements(__file__)
_INSERT_TURNS = _sql.bulk("insert_turns_unless_there", "pipeline tenant")
_SET_TURNS = _sql.bulk("set_turns", "pipeline tenant high normal low")


class Turns(NamedTuple):
    """The turns of jobs that are submitted together."""

    turns: list[int]  # in the order of the wishes; 0 for a tenant in ``limited``, whose quota gives the turn
    at: float  # when they were given: seconds since 1970 by the database's clock
    limited: set[str]  # the tenants that have the limit running_jobs
    unknown: set[str]  # the tenants that have no row


def take_turns(tx: Connection, wishes: Sequence[Wish]) -> Turns:
    """Return the jobs' turns, and note them as their tenants' last ones.

    The rows of the tenants' turns stay locked until the transaction's end. Every transaction locks them in the same
    order, and before it locks anything else that another submit might wait for.
    """
    wanted = sorted({(wish.pipeline.name, wish.tenant) for wish in wishes})
    lock = (
        _sql["lock_turns"],
        {"ids": listed({pipeline for pipeline, _ in wanted}), "keys": listed({tenant for _, tenant in wanted})},
    )
    names = {"ids": listed({wish.tenant for wish in wishes})}
    tenants, keep_tenants = (WEIGHTS_AND_LIMITS, names), (_sql["keep_tenants"], names)
    last, tenant_rows, [(at,)] = execute_pipelined(tx, [lock, tenants, (_sql["time"], {})])
    if not {(row[0], row[1]) for row in last}.issuperset(wanted):
        _INSERT_TURNS.run(tx, wanted)
        # Who deletes a tenant locks its turns, and these were not there to be locked.
        last, tenant_rows = execute_pipelined(tx, [lock, keep_tenants])
    lines = {(pipeline, tenant): Lines(*turns) for pipeline, tenant, *turns in last}
    weight_of: dict[str, float] = {name: weight for name, weight, _ in tenant_rows}
    limited = {name for name, _, limits in tenant_rows if running_limit(limits) is not None}
    times = virtual_times(tx, [wish for wish in wishes if wish.tenant not in limited])
    turns = [
        0
        if wish.tenant in limited
        else turn_of(wish, lines[wish.pipeline.name, wish.tenant], times, weight_of.get(wish.tenant, 1.0))
        for wish in wishes
    ]
    changed = [key for key in wanted if key[1] not in limited]
    _SET_TURNS.run(tx, [(*key, lines[key].high, lines[key].normal, lines[key].low) for key in changed])
    return Turns(turns, at, limited, {wish.tenant for wish in wishes} - weight_of.keys())
