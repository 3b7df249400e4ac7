"""The jobs of tenants with the limit running_jobs are counted, and held while as many of them run as may.

Jobs of before are not counted: they go on without the limit.

Revision: 0012
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "quota_jobs",
        sa.Column("job_id", sa.String(40), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("turn", sa.BigInteger(), nullable=False),
        sa.Column("is_let_in", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_quota_jobs_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_quota_jobs")),
    )
    columns = ["tenant", "is_let_in", "turn", "job_id"]
    op.create_index(op.f("ix_quota_jobs_tenant_is_let_in_turn_job_id"), "quota_jobs", columns)


def downgrade() -> None:
    # No later transition lets in what is held, so it goes into its lines now.
    op.execute(
        "UPDATE stage_runs SET state = 'queued', reason = NULL, due = 0,"
        " queued_at = (SELECT created_at FROM jobs WHERE jobs.id = stage_runs.job_id)"
        " WHERE state = 'pending' AND reason = 'quota'"
    )
    op.drop_table("quota_jobs")
