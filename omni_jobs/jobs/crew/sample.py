"""Sample: note, every ten seconds, how each stage stands and what its workers counted (``keep.stage_samples``).

Any number of rescuers may call it. The first in ten seconds takes the sample, under the lock of one row.
"""

from collections import defaultdict
from collections.abc import Mapping

from sqlalchemy import Connection, func, select, update

from omni_jobs.database.clock import now
from omni_jobs.database.insert import insert_unless_there
from omni_jobs.database.seen_tables import SamplingRow
from omni_jobs.database.tables import WorkerRow
from omni_jobs.identity import PipelineId
from omni_jobs.jobs.keep import stage_samples
from omni_jobs.jobs.keep.stage_samples import FINE_S, StageName, StageSample, StageStanding, VersionStage
from omni_jobs.jobs.order.pipeline_versions import known_versions
from omni_jobs.jobs.read.counts import counts
from omni_jobs.metrics.stage_stats import StageStats
from omni_jobs.states import StageRunState

_ROW = 1
_LAST = select(SamplingRow.at).where(SamplingRow.id == _ROW)


def is_due(tx: Connection) -> bool:
    """Return whether nobody has taken a sample in these ten seconds yet."""
    at: float = tx.execute(select(now())).scalar_one()
    return _is_due(tx.execute(_LAST).scalar_one_or_none(), at)


def standings(tx: Connection) -> dict[VersionStage, StageStanding]:
    """Return how the stages stand that have a worker, or stage runs that have not ended, each version by itself.

    Drained workers are none.
    """
    counted = (WorkerRow.lease_until > now(), WorkerRow.drained_at.is_(None))
    columns = (WorkerRow.pipeline, WorkerRow.pipeline_digest, WorkerRow.pipeline_version, WorkerRow.stage)
    sums = (func.count().label("workers"), func.sum(WorkerRow.slots).label("slots"))
    query = select(*columns, WorkerRow.loading, *sums).where(*counted).group_by(*columns, WorkerRow.loading)
    workers = tx.execute(query).all()
    numbers = {each.pipeline: each.version for each in known_versions(tx)}
    numbers |= {PipelineId(row.pipeline, row.pipeline_digest): row.pipeline_version for row in workers}
    found: dict[VersionStage, StageStanding] = defaultdict(StageStanding)
    states = {StageRunState.QUEUED: "queued", StageRunState.RUNNING: "running", StageRunState.PENDING: "pending"}
    for each in counts(tx).stage_runs:
        number = numbers.get(PipelineId(each.pipeline, each.pipeline_digest), "")
        stage = VersionStage(each.pipeline, number, each.stage)
        found[stage] = found[stage].plus(StageStanding(**{states[each.state]: float(each.count)}))
    for row in workers:
        count = float(row.workers)
        more = StageStanding(loading=count) if row.loading else StageStanding(workers=count, slots=float(row.slots))
        stage = VersionStage(row.pipeline, row.pipeline_version, row.stage)
        found[stage] = found[stage].plus(more)
    return dict(found)


def sample(tx: Connection, standing: Mapping[VersionStage, StageStanding]) -> bool:
    """Take the sample of these ten seconds, unless somebody has, and return whether it did.

    ``standing``: how the stages stand, read a moment ago, so that no writer waits while they are counted. A sample is
    of all versions together. Counts of a time in which nobody sampled are all in the next sample, whose ``span_s`` says
    so.
    """
    insert_unless_there(tx, SamplingRow, id=_ROW, at=0.0)
    last: float = tx.execute(_LAST.with_for_update()).scalar_one()
    at: float = tx.execute(select(now())).scalar_one()
    if not _is_due(last, at):
        return False
    tx.execute(update(SamplingRow).where(SamplingRow.id == _ROW).values(at=at))
    gained = stage_samples.gains(tx, begin=not last)
    stood: dict[StageName, StageStanding] = defaultdict(StageStanding)
    for stage, its in standing.items():
        stood[stage.name] = stood[stage.name].plus(its)
    began = int(at // FINE_S * FINE_S) - FINE_S
    span_s = at - last if 0 < last < at else float(FINE_S)
    stage_samples.add(
        tx,
        [
            StageSample(name, began, span_s, stood.get(name, StageStanding()), gained.get(name, StageStats()))
            for name in sorted({*stood, *(name for name, stats in gained.items() if stats != StageStats())})
        ],
    )
    stage_samples.prune(tx, at)
    return True


def _is_due(last: float | None, at: float) -> bool:
    """Return whether no sample was taken in the ten seconds of ``at``. A clock that was set back makes it due."""
    return last is None or not at // FINE_S * FINE_S <= last <= at
