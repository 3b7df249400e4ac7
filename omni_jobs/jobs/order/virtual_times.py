"""Virtual times: how far the lines have got that jobs are about to join (``omni_jobs.jobs.order.turns``)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from omni_jobs.database.statement import Statements, execute_pipelined
from omni_jobs.identity import PipelineId, StageId
from omni_jobs.jobs.order.turns import Lines, next_turn
from omni_jobs.priority import Priority

_sql = Statements(__file__)
_LineKey = tuple[PipelineId, tuple[str, ...]]


class Wish(NamedTuple):
    """A job that wants a turn."""

    pipeline: PipelineId
    tenant: str
    priority: Priority
    stages: tuple[str, ...]  # the names of its stages
    cost: float = 1.0  # 1: a plain job's

    @property
    def line(self) -> _LineKey:
        """The key of the virtual time by which the job is measured: its pipeline file and its stages."""
        return self.pipeline, self.stages


def turn_of(wish: Wish, lines: Lines, times: Mapping[_LineKey, int], weight: float) -> int:
    """Return a job's turn by the virtual times, and note it in the ``lines`` of its tenant, which has this weight."""
    return next_turn(lines, times[wish.line], wish.priority, weight, wish.cost)


def virtual_times(tx: Connection, wishes: Sequence[Wish]) -> dict[_LineKey, int]:
    """Return the virtual time of each line that these jobs join. Call it under the lock of the tenants' lines."""
    times: dict[_LineKey, int] = {}
    lines = {wish.line: wish for wish in wishes}
    for line, wish in lines.items():
        first = [(_sql["first_turn"], StageId(wish.pipeline, stage).columns) for stage in wish.stages]
        pipeline = {"pipeline": wish.pipeline.name}
        *heads, [(claimed,)] = execute_pipelined(tx, [*first, (_sql["claimed_turn"], pipeline)])
        reached: list[int] = [turn for rows in heads for (turn,) in rows]
        if claimed is not None:
            reached.append(claimed)
        if not reached:
            [[(highest,)]] = execute_pipelined(tx, [(_sql["highest_turn"], pipeline)])
            reached.append(highest or 0)
        times[line] = min(reached)
    return times
