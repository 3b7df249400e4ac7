"""Samples: what each stage's workers counted in ten seconds, and how the stage stood at their end.

Rows of 10 s are kept for a day. Each sample is also added to a row of 5 minutes and to one of 2 hours, which are kept
for 30 days: the longer ones let a month be read quickly. A worker's row has its counts since its start, so a sample is
what came since the sample before: ``sampled_workers`` has the counts of each worker as they were then. As a worker's
row goes, its last counts are noted there, so that what it counted after the last sample is not lost.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, or_, select

from omni_jobs.database.clock import now
from omni_jobs.database.insert import insert_or
from omni_jobs.database.seen_tables import SampledWorkerRow, StageSampleRow
from omni_jobs.database.tables import WorkerRow
from omni_jobs.metrics.stage_stats import StageStats

FINE_S: Final = 10
"""How many seconds a sample takes."""
COARSE_S: Final = 300
"""How many seconds the samples are added up to that are kept for long."""
LONG_S: Final = 7200
"""How many seconds the samples are added up to that a month is read by."""

_KEPT_S: Final[Mapping[int, float]] = {FINE_S: 86_400.0, COARSE_S: 30 * 86_400.0, LONG_S: 30 * 86_400.0}
_FORGOTTEN_AFTER_S = 86_400.0


class StageName(NamedTuple):
    """A stage of a pipeline, of whatever version."""

    pipeline: str
    stage: str


class VersionStage(NamedTuple):
    """A stage of one version of a pipeline."""

    pipeline: str
    version: str  # its number; empty where nobody knows it
    stage: str

    @property
    def name(self) -> StageName:
        """The stage, of whatever version."""
        return StageName(self.pipeline, self.stage)


@dataclass(frozen=True, slots=True)
class StageStanding:
    """How a stage stands at a moment; in a row of several samples, in the mean."""

    queued: float = 0.0  # stage runs
    running: float = 0.0
    pending: float = 0.0
    workers: float = 0.0  # with a lease, and their engine loaded
    loading: float = 0.0  # workers that load it
    slots: float = 0.0  # of the workers that have loaded it

    def plus(self, other: "StageStanding") -> "StageStanding":
        """Return what both have together, of one moment."""
        mine, others = asdict(self), asdict(other)
        return StageStanding(**{name: mine[name] + others[name] for name in mine})

    def mean(self, share: float, other: "StageStanding") -> "StageStanding":
        """Return the mean of both, of which this one has ``share``."""
        mine, others = asdict(self), asdict(other)
        return StageStanding(**{name: share * mine[name] + (1 - share) * others[name] for name in mine})


@dataclass(frozen=True, slots=True)
class StageSample:
    """What a stage's workers counted within ``span_s``, which began about ``at``, and how it stood."""

    name: StageName
    at: int  # seconds since 1970
    span_s: float  # the time of its counts: more than a step after a time in which nobody sampled
    standing: StageStanding
    stats: StageStats

    def plus(self, later: "StageSample") -> "StageSample":
        """Return both as one sample, that begins where this one does."""
        span_s = self.span_s + later.span_s
        share = self.span_s / span_s if span_s else 0.5
        return StageSample(
            self.name, self.at, span_s, self.standing.mean(share, later.standing), self.stats.plus(later.stats)
        )


def note_final(tx: Connection, workers: ColumnElement[bool]) -> None:
    """Note the last counts of these workers, whose rows the caller is about to delete."""
    columns = (WorkerRow.id, WorkerRow.pipeline, WorkerRow.stage, WorkerRow.stats)
    for row in tx.execute(select(*columns).where(workers, WorkerRow.stats.is_not(None)).order_by(WorkerRow.id)).all():
        note_final_of(tx, *row)


def note_final_of(tx: Connection, worker_id: str, pipeline: str, stage: str, stats: Mapping[str, Any] | None) -> None:
    """Note the last counts of a worker whose row is gone. None: it has counted nothing."""
    if stats is not None:
        values = {"worker_id": worker_id, "pipeline": pipeline, "stage": stage, "at": now()}
        _upsert(tx, values, final=stats)


def gains(tx: Connection, *, begin: bool) -> dict[StageName, StageStats]:
    """Return what workers counted since it was asked last, by stage, and note that it is taken.

    ``begin``: what they counted until now is of no sample, because there is none before it. For one transaction at a
    time.
    """
    rows = tx.execute(select(SampledWorkerRow.__table__)).all()
    sampled = {row.worker_id: StageStats() if row.sampled is None else StageStats.of(row.sampled) for row in rows}
    newest = [(row.worker_id, StageName(row.pipeline, row.stage), row.final) for row in rows if row.final is not None]
    gone = {worker_id for worker_id, _, _ in newest}
    columns = (WorkerRow.id, WorkerRow.pipeline, WorkerRow.stage, WorkerRow.stats)
    for row in tx.execute(select(*columns).where(WorkerRow.stats.is_not(None)).order_by(WorkerRow.id)):
        if row.id not in gone:
            newest.append((row.id, StageName(row.pipeline, row.stage), row.stats))
    gained: dict[StageName, StageStats] = {}
    for worker_id, name, data in newest:
        stats = StageStats.of(data)
        gain = stats.since(sampled.get(worker_id, StageStats()))
        if not begin:
            gained[name] = gained.get(name, StageStats()).plus(gain)
        if worker_id not in gone and gain != StageStats():
            values = {"worker_id": worker_id, "pipeline": name.pipeline, "stage": name.stage, "at": now()}
            _upsert(tx, values, sampled=stats.to_json())
    if gone:
        tx.execute(delete(SampledWorkerRow).where(SampledWorkerRow.worker_id.in_(sorted(gone))))
    return gained


def _upsert(tx: Connection, values: Mapping[str, Any], **changed: Any) -> None:
    """Write a row of ``sampled_workers``, of which only ``changed`` is written where it is there."""
    tx.execute(
        insert_or(tx, SampledWorkerRow)
        .values(**values, **changed)
        .on_conflict_do_update(index_elements=[SampledWorkerRow.worker_id], set_={**changed, "at": now()})
    )


def add(tx: Connection, samples: Iterable[StageSample]) -> None:
    """Add samples of 10 s to the rows of each length. For one transaction at a time."""
    new = [(step_s, _at_step(sample, step_s)) for sample in samples for step_s in _KEPT_S]
    if not new:
        return
    windows = sorted({(step_s, sample.at) for step_s, sample in new})
    is_of_them = or_(*(and_(StageSampleRow.step_s == step, StageSampleRow.at == at) for step, at in windows))
    found = tx.execute(select(StageSampleRow.__table__).where(is_of_them))
    known = {(row.step_s, row.at, row.pipeline, row.stage): row for row in found}
    written = []
    for step_s, sample in new:
        row = known.pop((step_s, sample.at, *sample.name), None)
        written.append((step_s, sample if row is None else sample_of(row).plus(sample)))
        if row is not None:
            tx.execute(delete(StageSampleRow).where(*_is(step_s, sample)))
    tx.execute(insert(StageSampleRow), [_row(step_s, sample) for step_s, sample in written])


def _at_step(sample: StageSample, step_s: int) -> StageSample:
    return StageSample(sample.name, sample.at // step_s * step_s, sample.span_s, sample.standing, sample.stats)


def _is(step_s: int, sample: StageSample) -> Sequence[ColumnElement[bool]]:
    row = StageSampleRow
    return (
        row.step_s == step_s,
        row.pipeline == sample.name.pipeline,
        row.stage == sample.name.stage,
        row.at == sample.at,
    )


def _row(step_s: int, sample: StageSample) -> dict[str, Any]:
    return {
        "step_s": step_s,
        **sample.name._asdict(),
        "at": sample.at,
        "span_s": sample.span_s,
        **asdict(sample.standing),
        "stats": sample.stats.to_json(),
    }


def sample_of(row: Any) -> StageSample:
    """Return the sample of a row of ``stage_samples``."""
    standing = StageStanding(**{name: getattr(row, name) for name in StageStanding.__dataclass_fields__})
    return StageSample(StageName(row.pipeline, row.stage), row.at, row.span_s, standing, StageStats.of(row.stats))


def prune(tx: Connection, at: float) -> None:
    """Delete the samples that are kept no longer ``at`` this time, and counts of workers that left no last ones."""
    for step_s, kept_s in _KEPT_S.items():
        first = int(at - kept_s)
        tx.execute(delete(StageSampleRow).where(StageSampleRow.step_s == step_s, StageSampleRow.at < first))
    lost = ~select(WorkerRow.id).where(WorkerRow.id == SampledWorkerRow.worker_id).exists()
    tx.execute(delete(SampledWorkerRow).where(SampledWorkerRow.at < at - _FORGOTTEN_AFTER_S, lost))
