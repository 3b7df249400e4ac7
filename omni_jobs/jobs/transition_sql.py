"""The SQL of :class:`omni_jobs.jobs.transition.JobTransition`: its locks, its reads and its guarded updates.

``X_IF_Y`` changes only stage runs in state Y; a running one must also be at the given attempt. The parameter
``new_<column>`` is the new value of a column, because SQLAlchemy keeps the column's bare name for itself.
"""

from sqlalchemy import ColumnElement, bindparam, func, null, or_, select, true, type_coerce, update
from sqlalchemy.types import BigInteger, Boolean, Integer, LargeBinary, Text

from omni_jobs.database.bulk_statement import BulkStatement, Given, among, one_of
from omni_jobs.database.clock import now
from omni_jobs.database.statement import Statement
from omni_jobs.database.tables import (
    ArtifactRow,
    AttemptErrorRow,
    EventRow,
    GarbageRow,
    JobRow,
    Seconds,
    StageRunRow,
    literal,
    state_seen,
)
from omni_jobs.states import StageRunState

_ids = bindparam("ids", type_=Text)
_JOB_IDS = select(StageRunRow.job_id).where(one_of(StageRunRow.id, _ids))
_LOCK = (
    select(JobRow.id, JobRow.state, JobRow.ending, now().label("now"))
    .order_by(JobRow.id)
    .with_for_update(key_share=True)
)
LOCK_JOBS = Statement(_LOCK.where(one_of(JobRow.id, _ids)))
LOCK_JOBS_OF_STAGE_RUNS = Statement(_LOCK.where(among(JobRow.id, _JOB_IDS)))
# JSON is read as text, because nearly all of it is alike from row to row. The rows have no order, because for one
# PostgreSQL might walk the whole primary key.
_STAGE_RUNS = select(
    StageRunRow.id,
    StageRunRow.job_id,
    StageRunRow.stage,
    StageRunRow.queue,
    type_coerce(StageRunRow.inputs, Text),
    StageRunRow.state,
    StageRunRow.attempt,
    type_coerce(StageRunRow.failures, Text),
    type_coerce(StageRunRow.retries, Text),
    StageRunRow.owner,
    StageRunRow.payload_bytes,
    type_coerce(StageRunRow.payload_ref, Text),
    StageRunRow.payload_gone,
)
STAGE_RUNS_OF_JOBS = Statement(_STAGE_RUNS.where(one_of(StageRunRow.job_id, _ids)))
# All stage runs of the jobs that the given stage runs are of.
STAGE_RUNS_OF_SAME_JOBS = Statement(_STAGE_RUNS.where(among(StageRunRow.job_id, _JOB_IDS)))


def _is_running(given: Given) -> tuple[ColumnElement[bool], ...]:
    return (
        StageRunRow.id == given["stage_run"],
        StageRunRow.attempt == given["held_attempt"],
        state_seen(StageRunRow.state, StageRunState.RUNNING),
    )


SUCCEED_IF_RUNNING = BulkStatement.update(
    StageRunRow.id,
    {
        "stage_run": BigInteger,
        "held_attempt": Integer,
        "new_result": Text,
        "new_payload_ref": Text,
        "new_payload_inline": LargeBinary,
        "new_payload_bytes": BigInteger,
        "new_finish_reason": Text,
        "new_warnings": Text,
        "at": Seconds,
    },
    lambda given: (
        update(StageRunRow)
        .where(*_is_running(given))
        .values(
            state=literal(StageRunState.SUCCEEDED),
            result=given["new_result"],
            payload_ref=given["new_payload_ref"],
            payload_inline=given["new_payload_inline"],
            payload_bytes=given["new_payload_bytes"],
            finish_reason=given["new_finish_reason"],
            warnings=given["new_warnings"],
            finished_at=given["at"],
        )
    ),
)
END_IF_RUNNING = BulkStatement.update(
    StageRunRow.id,
    {"stage_run": BigInteger, "held_attempt": Integer, "new_state": Text, "new_failures": Text, "at": Seconds},
    lambda given: (
        update(StageRunRow)
        .where(*_is_running(given))
        .values(state=given["new_state"], failures=given["new_failures"], finished_at=given["at"])
    ),
)
REQUEUE_IF_RUNNING = BulkStatement.update(
    StageRunRow.id,
    {
        "stage_run": BigInteger,
        "held_attempt": Integer,
        "new_failures": Text,
        "new_due": Seconds,
        "new_announce_at": Seconds,
        "new_reason": Text,
    },
    lambda given: (
        update(StageRunRow)
        .where(*_is_running(given))
        .values(
            state=literal(StageRunState.QUEUED),
            owner=null(),
            failures=given["new_failures"],
            due=given["new_due"],
            announce_at=given["new_announce_at"],
            queue_deadline=given["new_due"] + StageRunRow.queue_limit_s,
            reason=given["new_reason"],
            progress=null(),
        )
    ),
)
QUEUE_IF_PENDING = BulkStatement.update(
    StageRunRow.id,
    {"stage_run": BigInteger, "at": Seconds, "new_announce_at": Seconds},
    lambda given: (
        update(StageRunRow)
        .where(StageRunRow.id == given["stage_run"], state_seen(StageRunRow.state, StageRunState.PENDING))
        .values(
            state=literal(StageRunState.QUEUED),
            queued_at=given["at"],
            due=given["at"],
            announce_at=given["new_announce_at"],
            queue_deadline=given["at"] + StageRunRow.queue_limit_s,
        )
    ),
)
CANCEL_IF_WAITING = (
    update(StageRunRow)
    .where(
        one_of(StageRunRow.id, _ids),
        StageRunRow.state.in_([StageRunState.PENDING.value, StageRunState.QUEUED.value]),
    )
    .values(state=StageRunState.CANCELLED.value, finished_at=bindparam("at"), reason=None)
)
SET_JOB = BulkStatement.update(
    JobRow.id,
    {
        "job": Text,
        "new_state": Text,
        "new_ending": Text,
        "new_error": Text,
        "new_error_code": Text,
        "at": Seconds,
        "new_prune_at": Seconds,
        "no_payloads": Boolean,
    },
    lambda given: (
        update(JobRow)
        .where(JobRow.id == given["job"])
        .values(
            state=given["new_state"],
            ending=given["new_ending"],
            error=func.coalesce(given["new_error"], JobRow.error),  # cancelling keeps it for the end
            error_code=func.coalesce(given["new_error_code"], JobRow.error_code),
            finished_at=given["at"],
            prune_at=given["new_prune_at"],
            payloads_gone=or_(JobRow.payloads_gone, given["no_payloads"]),
        )
    ),
)
FORGET_PAYLOAD = BulkStatement.update(
    StageRunRow.id,
    {"stage_run": BigInteger},
    lambda given: (
        update(StageRunRow)
        .where(StageRunRow.id == given["stage_run"])
        .values(payload_ref=null(), payload_inline=null(), payload_gone=true())
    ),
)
INSERT_EVENT = BulkStatement.insert(EventRow, {"job_id": Text, "type": Text, "data": Text, "at": Seconds})
INSERT_ERROR = BulkStatement.insert(
    AttemptErrorRow, {"stage_run_id": BigInteger, "attempt": Integer, "worker": Text, "error": Text, "at": Seconds}
)
INSERT_ARTIFACT = BulkStatement.insert(
    ArtifactRow,
    {"job_id": Text, "name": Text, "stage_run_id": BigInteger, "media_type": Text, "ref": Text, "created_at": Seconds},
)
INSERT_GARBAGE = BulkStatement.insert(GarbageRow, {"job_id": Text, "what": Text})
