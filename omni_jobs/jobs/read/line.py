"""The line of a stage: its queued stage runs of one pipeline file, in the order of ``(turn, id)``.

What stands before a stage run, how fast the workers take the line on, and how long that takes. Each read costs a few
lookups in indexes, however long the line is: at most ``COUNTED`` of its stage runs are counted.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import BigInteger, Connection, bindparam, case, func, select, tuple_, union_all

from omni_jobs.database.clock import now
from omni_jobs.database.tables import CalibrationRow, JobRow, StageRunRow, WorkerRow, state_is, state_seen
from omni_jobs.identity import StageId
from omni_jobs.jobs.read.estimates import FIRST_FACTORS, Factors, Interval, expected_s, interval
from omni_jobs.states import JobState, StageRunState

COUNTED = 500
"""The number of stage runs, from the beginning of a line, that are counted for one that stands behind them."""


class QueuedRun(NamedTuple):
    """A queued stage run in its line."""

    turn: int
    stage_run_id: int
    is_high: bool  # its job's priority


class Place(NamedTuple):
    """What stands before a stage run in its line, of all tenants."""

    before: float  # stage runs; beyond COUNTED by the distance of their turns
    high_before: int  # those of high jobs among them


class OwnPlace(NamedTuple):
    """How many stage runs of its own tenant stand before a stage run. Nothing of other tenants is looked at."""

    before: int
    is_exact: bool  # False: the tenant has more jobs than are looked at, so ``before`` may be too low


class Pace(NamedTuple):
    """What the live workers of a line can do."""

    slots: int  # but for kept ones
    free: int  # slots that run nothing, but for kept ones
    kept: int  # slots that only stage runs of high jobs may take
    kept_free: int
    run_s: float | None  # how long a stage run took them lately, in the mean; None: none of them knows yet


class Wait(NamedTuple):
    """How long a stage run is expected to wait: the point estimate, and the interval around it."""

    point_s: float
    told: Interval


# Built once, because SQLAlchemy would visit every part of them with every call.
_IN_LINE = (
    StageRunRow.pipeline == bindparam("pipeline"),
    StageRunRow.stage == bindparam("stage"),
    StageRunRow.pipeline_digest == bindparam("pipeline_digest"),
    state_is(StageRunRow.state, StageRunState.QUEUED),
)
_IN_ORDER = (StageRunRow.turn, StageRunRow.id)
_is_before = tuple_(*_IN_ORDER) < tuple_(
    bindparam("turn", type_=BigInteger), bindparam("stage_run_id", type_=BigInteger)
)
_first = (
    select(StageRunRow.turn, StageRunRow.is_high).where(*_IN_LINE, _is_before).order_by(*_IN_ORDER).limit(COUNTED)
).subquery()
_BEFORE = select(
    func.count().label("all"),
    func.count().filter(_first.c.is_high).label("high"),
    func.min(_first.c.turn).label("first_turn"),
    func.max(_first.c.turn).label("last_turn"),
)
# The tenant's oldest jobs in each state in which a stage run may stand in a line. Each is looked up by its id.
_own_jobs = union_all(
    *(
        select(
            select(JobRow.id)
            .where(
                JobRow.tenant == bindparam("tenant"),
                state_is(JobRow.state, state),
                JobRow.pipeline.concat("") == bindparam("pipeline"),  # read in the tenant's index
            )
            .order_by(JobRow.id)
            .limit(COUNTED + 1)
            .subquery()
            .c.id
        )
        for state in (JobState.QUEUED, JobState.IN_PROGRESS)
    )
).subquery()
_own_before = (
    select(StageRunRow.id)
    .where(
        StageRunRow.job_id == _own_jobs.c.id,
        StageRunRow.stage == bindparam("stage"),
        StageRunRow.pipeline_digest == bindparam("pipeline_digest"),
        state_seen(StageRunRow.state, StageRunState.QUEUED),
        _is_before,
    )
    .exists()
)
_OWN = select(func.count().label("jobs"), func.count().filter(_own_before).label("own")).select_from(_own_jobs)
_running = (
    select(func.count())
    .where(state_is(StageRunRow.state, StageRunState.RUNNING), StageRunRow.owner == WorkerRow.id)
    .correlate(WorkerRow)
)
_running_high = case((WorkerRow.slots_for_high > 0, _running.where(StageRunRow.is_high).scalar_subquery()), else_=0)
_WORKERS = select(
    WorkerRow.slots,
    WorkerRow.slots_for_high,
    WorkerRow.run_s,
    _running.scalar_subquery().label("running"),
    _running_high.label("running_high"),
).where(
    WorkerRow.pipeline == bindparam("pipeline"),
    WorkerRow.stage == bindparam("stage"),
    WorkerRow.pipeline_digest == bindparam("pipeline_digest"),
    WorkerRow.lease_until > now(),
    WorkerRow.loading.is_(False),
    WorkerRow.drained_at.is_(None),
)
_FACTORS = select(CalibrationRow.low_factor, CalibrationRow.high_factor).where(
    CalibrationRow.pipeline == bindparam("pipeline"), CalibrationRow.stage == bindparam("stage")
)
_standing = select(StageRunRow.turn, StageRunRow.id, StageRunRow.is_high)
_FIRST_STANDING = _standing.where(*_IN_LINE).order_by(*_IN_ORDER).offset(bindparam("number")).limit(1)
_LAST_STANDING = _standing.where(*_IN_LINE).order_by(*(each.desc() for each in _IN_ORDER)).limit(1)
_LENGTH = select(func.count()).select_from(select(StageRunRow.id).where(*_IN_LINE).limit(COUNTED).subquery())


def place(tx: Connection, line: StageId, standing: QueuedRun) -> Place:
    """Return what stands before a stage run in its line.

    Behind those that are counted, others are assumed to stand as close to each other as they do.
    """
    row = tx.execute(_BEFORE, line.columns | standing._asdict()).one()
    before = float(row.all)
    if row.all == COUNTED and row.last_turn > row.first_turn:
        before *= max(1.0, (standing.turn - row.first_turn) / (row.last_turn - row.first_turn))
    return Place(before, row.high)


def own_place(tx: Connection, line: StageId, standing: QueuedRun, tenant: str) -> OwnPlace:
    """Return how many stage runs of its tenant stand before a stage run in its line, COUNTED at the most.

    At most COUNTED queued jobs of the tenant and as many that are in progress are looked at, the oldest.
    """
    row = tx.execute(_OWN, line.columns | standing._asdict() | {"tenant": tenant}).one()
    return OwnPlace(min(row.own, COUNTED), row.jobs <= COUNTED)


def pace(tx: Connection, line: StageId) -> Pace:
    """Return what the live workers of a line can do. One that has ended nothing yet counts as fast as the others."""
    workers = tx.execute(_WORKERS, line.columns).all()
    known = [(worker.slots, worker.run_s) for worker in workers if worker.run_s]
    ends_per_s = sum(slots / run_s for slots, run_s in known)
    kept = sum(worker.slots_for_high for worker in workers)
    all_free = sum(max(0, worker.slots - worker.running) for worker in workers)
    kept_free = sum(
        # Stage runs of high jobs take kept slots first.
        max(0, min(worker.slots_for_high - worker.running_high, worker.slots - worker.running))
        for worker in workers
    )
    return Pace(
        slots=sum(worker.slots for worker in workers) - kept,
        free=all_free - kept_free,
        kept=kept,
        kept_free=kept_free,
        run_s=sum(slots for slots, _ in known) / ends_per_s if known else None,
    )


def factors_of(tx: Connection, line: StageId) -> Factors:
    """Return the factors of a line's stage, as its calibration has them."""
    row = tx.execute(_FACTORS, line.columns).one_or_none()
    return FIRST_FACTORS if row is None else Factors(*row)


def expected_wait(place: Place, pace: Pace, factors: Factors, is_high: bool) -> Wait | None:
    """Return how long a stage run will wait; None where nobody knows how long stage runs take, or nobody serves.

    ``is_high``: it may take a kept slot, if that comes first.
    """
    ways = [(place.before, pace.free, pace.slots)]
    if is_high:
        ways.append((place.high_before, pace.kept_free, pace.kept))
    point_s = min(
        (
            each
            for before, free, slots in ways
            if slots and (each := _point_s(before, free, slots, pace.run_s)) is not None
        ),
        default=None,
    )
    return None if point_s is None else Wait(point_s, interval(point_s, factors))


def _point_s(before: float, free: int, slots: int, run_s: float | None) -> float | None:
    if before + 1 <= free:
        return 0.0
    return None if run_s is None else expected_s(before, free, slots, run_s)


def length(tx: Connection, line: StageId) -> int:
    """Return the number of stage runs in a line, COUNTED if there are more."""
    return tx.execute(_LENGTH, line.columns).scalar_one()


def standing_at(tx: Connection, line: StageId, numbers: Sequence[int]) -> set[QueuedRun]:
    """Return the stage runs that have ``numbers`` of others before them in a line, and the line's last one, if any."""
    rows = [tx.execute(_FIRST_STANDING, line.columns | {"number": number}).one_or_none() for number in numbers]
    rows.append(tx.execute(_LAST_STANDING, line.columns).one_or_none())
    return {QueuedRun(*row) for row in rows if row is not None}
