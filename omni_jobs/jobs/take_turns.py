"""Take turns: give jobs that are submitted together their turns, and store each tenant's last turns in SQL."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from omni_jobs.database.statement import bulk, execute_pipelined, listed, statement
from omni_jobs.jobs.quota import running_limit
from omni_jobs.jobs.turns import Lines, next_turn
from omni_jobs.priority import Priority

_INSERT_TURNS = bulk("insert_turns_unless_there", "pipeline", "tenant")
_SET_TURNS = bulk("set_turns", "pipeline", "tenant", "high", "normal", "low")

_Line = tuple[str, str, tuple[str, ...]]


class Wish(NamedTuple):
    """A job that wants a turn."""

    pipeline: str
    tenant: str
    priority: Priority
    pipeline_digest: str
    stages: tuple[str, ...]  # the names of its stages

    @property
    def line(self) -> _Line:
        """What tells the virtual time that the job is measured by from others."""
        return self.pipeline, self.pipeline_digest, self.stages

    def of_stage(self, stage: str) -> dict[str, str]:
        """Return the parameters that name the stage's line of queued stage runs."""
        return {"pipeline": self.pipeline, "stage": stage, "digest": self.pipeline_digest}


class Turns(NamedTuple):
    """The turns of jobs that are submitted together."""

    turns: list[int]  # in the order of the wishes
    at: float  # when they were given: seconds since 1970 by the database's clock
    limited: set[str]  # the tenants that have the limit running_jobs


def take_turns(tx: Connection, wishes: Sequence[Wish]) -> Turns:
    """Return the jobs' turns, and note them as their tenants' last ones.

    The rows of the tenants' turns stay locked until the transaction's end. Every transaction locks them in the same
    order, and before it locks anything else that another submit might wait for.
    """
    wanted = sorted({(wish.pipeline, wish.tenant) for wish in wishes})
    lock = (
        statement("lock_turns"),
        {"ids": listed({pipeline for pipeline, _ in wanted}), "keys": listed({tenant for _, tenant in wanted})},
    )
    tenants = (statement("weights_and_limits"), {"ids": listed({wish.tenant for wish in wishes})})
    last, tenant_rows, [(at,)] = execute_pipelined(tx, [lock, tenants, (statement("time"), {})])
    if not {(row[0], row[1]) for row in last}.issuperset(wanted):
        _INSERT_TURNS.run(tx, wanted)
        [last] = execute_pipelined(tx, [lock])
    lines = {(pipeline, tenant): Lines(*turns) for pipeline, tenant, *turns in last}
    weight_of: dict[str, float] = {name: weight for name, weight, _ in tenant_rows}
    times = _virtual_times(tx, wishes)
    turns = [
        next_turn(lines[wish.pipeline, wish.tenant], times[wish.line], wish.priority, weight_of.get(wish.tenant, 1.0))
        for wish in wishes
    ]
    _SET_TURNS.run(tx, [(*key, lines[key].high, lines[key].normal, lines[key].low) for key in wanted])
    limited = {name for name, _, limits in tenant_rows if running_limit(limits) is not None}
    return Turns(turns, at, limited)


def _virtual_times(tx: Connection, wishes: Sequence[Wish]) -> dict[_Line, int]:
    """Return the virtual time of each line that these jobs join. Call it under the lock of the tenants' turns."""
    times: dict[_Line, int] = {}
    lines = {wish.line: wish for wish in wishes}
    for line, wish in lines.items():
        first = [(statement("first_turn"), wish.of_stage(stage)) for stage in wish.stages]
        pipeline = {"pipeline": wish.pipeline}
        *heads, [(claimed,)] = execute_pipelined(tx, [*first, (statement("claimed_turn"), pipeline)])
        reached: list[int] = [turn for rows in heads for (turn,) in rows]
        if claimed is not None:
            reached.append(claimed)
        if not reached:
            [[(highest,)]] = execute_pipelined(tx, [(statement("highest_turn"), pipeline)])
            reached.append(highest or 0)
        times[line] = min(reached)
    return times
