"""The first tables: jobs, stage runs, their errors, artifacts and events, workers, garbage.

Revision: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("pipeline", sa.String(length=100), nullable=False),
        sa.Column("pipeline_version", sa.String(length=20), nullable=False),
        sa.Column("pipeline_digest", sa.String(length=64), nullable=False),
        sa.Column("modalities", sa.Text(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("request_digest", sa.String(length=80), nullable=False),
        sa.Column("idempotency_key", sa.String(length=255), nullable=True),
        sa.Column("media", sa.Text(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("error_code", sa.String(length=40), nullable=True),
        sa.Column("ending", sa.String(length=16), nullable=True),
        sa.Column("deadline", sa.Double(), nullable=True),
        sa.Column("retries", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("prune_at", sa.Double(), nullable=True),
        sa.Column("payloads_gone", sa.Boolean(), nullable=False),
        sa.Column("inputs_gone", sa.Boolean(), nullable=False),
        sa.Column("artifacts_gone", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_jobs_idempotency_key")),
    )
    op.create_index(op.f("ix_jobs_pipeline_id"), "jobs", ["pipeline", "id"], unique=False)
    op.create_index(op.f("ix_jobs_state_id"), "jobs", ["state", "id"], unique=False)
    _create_partial_index("ix_jobs_backlog", "jobs", ["state", "pipeline", "tenant"], where="state = 'queued'")
    _create_partial_index(
        "ix_jobs_deadline", "jobs", ["deadline"], where="finished_at IS NULL AND deadline IS NOT NULL"
    )
    _create_partial_index("ix_jobs_error_code", "jobs", ["error_code", "id"], where="error_code IS NOT NULL")
    _create_partial_index("ix_jobs_prune_at", "jobs", ["prune_at"], where="prune_at IS NOT NULL")
    op.create_table(
        "workers",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("slot", sa.String(length=200), nullable=False),
        sa.Column("pipeline", sa.String(length=100), nullable=False),
        sa.Column("stage", sa.String(length=100), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("renewed_at", sa.Double(), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
        sa.UniqueConstraint("slot", name=op.f("uq_workers_slot")),
    )
    op.create_index(op.f("ix_workers_lease_until"), "workers", ["lease_until"], unique=False)
    op.create_table(
        "stage_runs",
        sa.Column("id", _BIG_ID, nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("pipeline", sa.String(length=100), nullable=False),
        sa.Column("stage", sa.String(length=100), nullable=False),
        sa.Column("queue", sa.String(length=200), nullable=False),
        sa.Column("inputs", sa.Text(), nullable=False),
        sa.Column("capture", sa.Boolean(), nullable=False),
        sa.Column("retries", sa.Text(), nullable=True),
        sa.Column("queue_limit_s", sa.Double(), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=40), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Text(), nullable=True),
        sa.Column("owner", sa.String(length=200), nullable=True),
        sa.Column("due", sa.Double(), nullable=True),
        sa.Column("announce_at", sa.Double(), nullable=True),
        sa.Column("queue_deadline", sa.Double(), nullable=True),
        sa.Column("queued_at", sa.Double(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("progress", sa.Text(), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("payload_ref", sa.Text(), nullable=True),
        sa.Column("payload_inline", sa.LargeBinary(), nullable=True),
        sa.Column("payload_bytes", sa.BigInteger(), nullable=True),
        sa.Column("payload_gone", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_stage_runs_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_stage_runs")),
        sa.UniqueConstraint("job_id", "position", name=op.f("uq_stage_runs_job_id_position")),
    )
    _create_partial_index("ix_stage_runs_pending", "stage_runs", ["pipeline", "stage"], where="state = 'pending'")
    _create_partial_index(
        "ix_stage_runs_queued", "stage_runs", ["pipeline", "stage", "announce_at"], where="state = 'queued'"
    )
    _create_partial_index(
        "ix_stage_runs_running", "stage_runs", ["owner", "pipeline", "stage"], where="state = 'running'"
    )
    _create_partial_index(
        "ix_stage_runs_queue_deadline",
        "stage_runs",
        ["queue_deadline"],
        where="state = 'queued' AND queue_deadline IS NOT NULL",
    )
    op.create_table(
        "artifacts",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("stage_run_id", _BIG_ID, nullable=False),
        sa.Column("media_type", sa.String(length=100), nullable=False),
        sa.Column("ref", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_artifacts_job_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["stage_run_id"], ["stage_runs.id"], name=op.f("fk_artifacts_stage_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "name", name=op.f("pk_artifacts")),
    )
    op.create_index(op.f("ix_artifacts_stage_run_id"), "artifacts", ["stage_run_id"], unique=False)
    op.create_table(
        "attempt_errors",
        sa.Column("stage_run_id", _BIG_ID, autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("worker", sa.String(length=200), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["stage_run_id"], ["stage_runs.id"], name=op.f("fk_attempt_errors_stage_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("stage_run_id", "attempt", name=op.f("pk_attempt_errors")),
    )
    op.create_table(
        "events",
        sa.Column("id", _BIG_ID, nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("type", sa.String(length=40), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_events_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_job_id"), "events", ["job_id"], unique=False)
    op.create_index(op.f("ix_events_at"), "events", ["at"], unique=False)
    op.create_table(
        "garbage",
        sa.Column("id", _BIG_ID, nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("what", sa.String(length=512), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_garbage")),
    )
    op.create_index(op.f("ix_garbage_job_id"), "garbage", ["job_id"], unique=False)


def _create_partial_index(name: str, table: str, columns: list[str], *, where: str) -> None:
    op.create_index(name, table, columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


def downgrade() -> None:
    for table in ("garbage", "events", "attempt_errors", "artifacts", "stage_runs", "workers", "jobs"):
        op.drop_table(table)
