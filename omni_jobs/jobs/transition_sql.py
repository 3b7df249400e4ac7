"""The bulk statements by which transitions write, with the columns of their rows.

Their text stands in ``omni_jobs/database/*.sql``. A name says the guard: ``complete_if_running`` changes a stage run
only while it is running at the row's attempt.
"""

from omni_jobs.database.statement import bulk

COMPLETE_IF_RUNNING = bulk(
    "complete_if_running",
    "stage_run",
    "held_attempt",
    "result",
    "payload_ref",
    "payload_inline",
    "payload_bytes",
    "finish_reason",
    "warnings",
    "at",
)
END_IF_RUNNING = bulk("end_if_running", "stage_run", "held_attempt", "state", "failures", "at")
REQUEUE_IF_RUNNING = bulk("requeue_if_running", "stage_run", "held_attempt", "failures", "due", "apart", "reason")
SET_SNAPSHOT_IF_HELD = bulk("set_snapshot_if_held", "stage_run", "held_attempt", "worker", "snapshot")
QUEUE_IF_PENDING = bulk("queue_if_pending", "stage_run", "at")
SET_JOB = bulk("set_job", "job", "state", "ending", "error", "error_code", "at", "prune_at", "no_payloads")
FORGET_PAYLOAD = bulk("forget_payload", "stage_run")
INSERT_EVENT = bulk("insert_event", "job_id", "type", "data", "at")
INSERT_ERROR = bulk("insert_error", "stage_run", "attempt", "worker", "error", "at")
INSERT_ARTIFACT = bulk("insert_artifact", "job_id", "name", "stage_run", "media_type", "ref", "at")
INSERT_GARBAGE = bulk("insert_garbage", "job_id", "what")
