"""Jobs by state are kept in one index, not two: every change of a job's state writes half as much of them.

Revision: 0004
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(op.f("ix_jobs_state_pipeline_id"), "jobs", ["state", "pipeline", "id"], unique=False)
    op.drop_index(op.f("ix_jobs_pipeline_state_id"), table_name="jobs")
    op.drop_index(op.f("ix_jobs_state_id"), table_name="jobs")


def downgrade() -> None:
    op.create_index(op.f("ix_jobs_state_id"), "jobs", ["state", "id"], unique=False)
    op.create_index(op.f("ix_jobs_pipeline_state_id"), "jobs", ["pipeline", "state", "id"], unique=False)
    op.drop_index(op.f("ix_jobs_state_pipeline_id"), table_name="jobs")
