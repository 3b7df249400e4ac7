"""One index of a tenant's jobs in place of two, because each costs every submit and every change of a job's state.

Revision: 0019
"""

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(op.f("ix_jobs_tenant_state_id_pipeline"), "jobs", ["tenant", "state", "id", "pipeline"])
    op.drop_index(op.f("ix_jobs_tenant_state_pipeline_id"), table_name="jobs")
    op.drop_index(op.f("ix_jobs_tenant_id"), table_name="jobs")


def downgrade() -> None:
    op.create_index(op.f("ix_jobs_tenant_id"), "jobs", ["tenant", "id"])
    op.create_index(op.f("ix_jobs_tenant_state_pipeline_id"), "jobs", ["tenant", "state", "pipeline", "id"])
    op.drop_index(op.f("ix_jobs_tenant_state_id_pipeline"), table_name="jobs")
