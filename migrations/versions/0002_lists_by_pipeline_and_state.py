"""Lists of one pipeline's jobs in one state read no others, however many there are.

Revision: 0002
"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(op.f("ix_jobs_pipeline_state_id"), "jobs", ["pipeline", "state", "id"], unique=False)
    op.drop_index(op.f("ix_jobs_pipeline_id"), table_name="jobs")


def downgrade() -> None:
    op.create_index(op.f("ix_jobs_pipeline_id"), "jobs", ["pipeline", "id"], unique=False)
    op.drop_index(op.f("ix_jobs_pipeline_state_id"), table_name="jobs")
