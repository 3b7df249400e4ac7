"""Quota: the limit ``running_jobs`` bounds the unfinished jobs of a tenant that are let in; others are held.

A job that is let in waits in its stages' lines and runs as any other. A submit or a retry of such a tenant writes a row
for the job, which goes when the job ends. Until the job is let in, the stage runs that could be queued are pending with
the reason QUOTA. Jobs without a row are not limited.

A job gets its turn as it is let in, not with its submit, because turns that wait outside the lines would be saved up:
whoever had many of them would have a stage alone once it lets them in. Its tenant's lines of such turns stand in rows
of their own (``quota_turns``), which only the lock of the tenant's row guards; ``take_turns`` looks at both. The order
of being let in is that of turns as well, in which a high job goes before a normal one, and the virtual time is the last
that was let in.

The locks of tenants' rows are taken after all others, in the order of their names, and who holds one waits for no other
kind of row: held jobs that another transaction has locked are passed over. Each transaction that makes room or adds a
job lets in under this lock what there is room for, so the last of several sees what all of them have done. The rescuer
lets in what is left: where a limit was changed, or a job was passed over.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import NamedTuple

from sqlalchemy import Connection, select

from omni_jobs.database.statement import Statements, execute_pipelined, listed
from omni_jobs.database.tables import QuotaJobRow, decode_json
from omni_jobs.identity import PipelineId
from omni_jobs.jobs.order.turns import Lines, next_turn
from omni_jobs.jobs.order.virtual_times import Wish, turn_of, virtual_times
from omni_jobs.priority import Priority

_sql = Statements(__file__)
LET_IN_AT_ONCE = 500
"""The most jobs of a tenant that one transaction lets in. The rescuer calls ``let_in`` until it lets in none."""

WEIGHTS_AND_LIMITS = _sql["weights_and_limits"]
_INSERT = _sql.bulk("insert_quota_jobs_unless_there", "job_id tenant turn cost")
_SET_LINES = _sql.bulk("set_quota_turns", "pipeline tenant high normal low")
_SET_TURN = _sql.bulk("set_turn", "job_id turn")
_ORDER = ""  # in place of a pipeline: the tenant's order of being let in
_TENANTS = select(QuotaJobRow.tenant).where(QuotaJobRow.is_let_in.is_(False)).distinct()


def running_limit(limits: str) -> int | None:
    """Return ``running_jobs`` of the JSON in a tenant's column ``limits``; None: no limit."""
    return decode_json(limits).get("running_jobs")  # type: ignore[no-any-return]


class _Tenant(NamedTuple):
    """A tenant whose row is locked."""

    name: str
    weight: float
    limit: int | None  # running_jobs
    inside: int  # the jobs that are let in and have not ended
    last: int  # the highest place in the order of being let in that one of these had
    lines: dict[str, Lines]  # by pipeline, and by _ORDER

    def save(self, tx: Connection, pipelines: Iterable[str]) -> None:
        """Write the lines of these pipelines."""
        _SET_LINES.run(tx, [(each, self.name, *astuple(self.lines[each])) for each in sorted(pipelines)])


def enter(tx: Connection, wishes: Mapping[str, Wish]) -> set[str]:
    """Put these jobs (by id) under their tenants' limits, let in what there is room for.

    Return the queues to ring: also those of jobs that were held before. The caller has written the stage runs that
    could be queued as pending with the reason QUOTA. A job that has a row already keeps it.
    """
    queues: set[str] = set()
    for name in sorted({wish.tenant for wish in wishes.values()}):
        tenant = _lock(tx, name)
        line = tenant.lines.setdefault(_ORDER, Lines())
        rows = []
        for job_id, wish in wishes.items():
            if wish.tenant == name:
                place = next_turn(line, tenant.last, wish.priority, 1.0)
                # The row has it as its turn: one less lets a high job go before a normal one of the same place.
                rows.append((job_id, name, place - (wish.priority is Priority.HIGH), wish.cost))
        tenant.save(tx, [_ORDER])
        _INSERT.run(tx, rows)
        queues |= _let_in(tx, tenant)
    return queues


def let_in(tx: Connection, tenants: Iterable[str]) -> set[str]:
    """Let in as many held jobs of these tenants as there is room for, and return the queues to ring.

    A tenant without the limit has room for LET_IN_AT_ONCE. The tenants' rows stay locked until the transaction's end.
    """
    return {queue for name in sorted(set(tenants)) for queue in _let_in(tx, _lock(tx, name))}


def _lock(tx: Connection, name: str) -> _Tenant:
    its = {"tenant": name}
    # Each statement sees what is committed when it begins, so the others see all that the lock waited for.
    calls = [(_sql[each], its) for each in ("lock_tenant", "count_let_in", "quota_turns")]
    rows, [(inside, last)], lines = execute_pipelined(tx, calls)
    weight, limits = rows[0] if rows else (1.0, "{}")
    return _Tenant(
        name, weight, running_limit(limits), inside, last or 0, {pipeline: Lines(*turns) for pipeline, *turns in lines}
    )


def _let_in(tx: Connection, tenant: _Tenant) -> set[str]:
    room = LET_IN_AT_ONCE if tenant.limit is None else min(tenant.limit - tenant.inside, LET_IN_AT_ONCE)
    if room <= 0:
        return set()
    jobs = _sql["let_in"].rows(tx, {"tenant": tenant.name, "at_most": str(room)})
    if not jobs:
        return set()
    ids = {"ids": listed(job_id for _, job_id, _ in jobs)}
    _SET_TURN.run(tx, _give_turns(tx, tenant, {job_id: cost for _, job_id, cost in sorted(jobs)}))
    return {queue for (queue,) in _sql["queue_if_held"].rows(tx, ids)}


def _give_turns(tx: Connection, tenant: _Tenant, costs: Mapping[str, float]) -> list[tuple[str, int]]:
    """Return a turn for each of these jobs (id to cost) that are let in now, and note it in the tenant's lines.

    They are in the order of being let in. The turns lie behind those that the tenant was given without the limit.
    """
    stages: dict[str, list[tuple[str, str, str, str]]] = {job_id: [] for job_id in costs}
    for job_id, *stage in sorted(_sql["stages_of_jobs"].rows(tx, {"ids": listed(costs)})):
        stages[job_id].append((stage[0], stage[1], stage[2], stage[3]))
    wishes: dict[str, Wish] = {}
    for job_id, rows in stages.items():
        _, pipeline, digest, priority = rows[0]
        names = tuple(name for name, *_ in rows)
        wishes[job_id] = Wish(PipelineId(pipeline, digest), tenant.name, Priority(priority), names, costs[job_id])
    pipelines = sorted({wish.pipeline.name for wish in wishes.values()})
    for pipeline, *turns in _sql["turns_of"].rows(tx, {"tenant": tenant.name, "ids": listed(pipelines)}):
        lines = tenant.lines.setdefault(pipeline, Lines())
        tenant.lines[pipeline] = Lines(*map(max, astuple(lines), turns))
    times = virtual_times(tx, list(wishes.values()))
    given = [
        (job_id, turn_of(wish, tenant.lines.setdefault(wish.pipeline.name, Lines()), times, tenant.weight))
        for job_id, wish in wishes.items()
    ]
    tenant.save(tx, pipelines)
    return given


def leave(tx: Connection, jobs: Mapping[str, str]) -> set[str]:
    """Forget these jobs (id to tenant), because they end; let in others and return the queues to ring."""
    _sql["delete_quota_jobs"].rows(tx, {"ids": listed(jobs)})
    return let_in(tx, jobs.values())


def tenants_with_held_jobs(tx: Connection) -> Sequence[str]:
    """Return the tenants of held jobs."""
    return tx.execute(_TENANTS).scalars().all()


def limits(tx: Connection, tenants: Iterable[str]) -> dict[str, int | None]:
    """Return the limit ``running_jobs`` of each of these tenants that has a row; None: no limit."""
    rows = WEIGHTS_AND_LIMITS.rows(tx, {"ids": listed(tenants)})
    return {name: running_limit(its_limits) for name, _, its_limits in rows}
