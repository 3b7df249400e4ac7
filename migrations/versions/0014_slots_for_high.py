"""Workers may keep slots for high jobs, whose stage runs have an index and a queue of doorbells of their own.

Revision: 0014
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_OF_HIGH_JOBS = (
    "WHERE state IN ('pending', 'queued', 'running')"
    " AND job_id IN (SELECT id FROM jobs WHERE priority = 'high' AND state IN ('queued', 'in_progress'))"
)


def upgrade() -> None:
    op.add_column("workers", sa.Column("slots_for_high", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.add_column("stage_runs", sa.Column("is_high", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.execute(f"UPDATE stage_runs SET is_high = true, queue = queue || '.high' {_OF_HIGH_JOBS}")  # noqa: S608
    where = sa.text("is_high AND state || '' = 'queued'")
    op.create_index(
        "ix_stage_runs_high",
        "stage_runs",
        ["pipeline", "stage", "pipeline_digest", "turn", "id"],
        sqlite_where=where,
        postgresql_where=where,
    )


def downgrade() -> None:
    op.drop_index("ix_stage_runs_high", table_name="stage_runs")
    op.execute("UPDATE stage_runs SET queue = pipeline || '.' || stage WHERE is_high")
    op.drop_column("stage_runs", "is_high")
    op.drop_column("workers", "slots_for_high")
