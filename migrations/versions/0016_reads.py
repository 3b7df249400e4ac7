"""Indexes of a tenant's own jobs, and events numbered within their job.

The index of idempotency keys begins with the key: else PostgreSQL may take one that begins with the tenant instead.

Revision: 0016
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_KEY_FIRST = ("idempotency_key", "tenant")


def upgrade() -> None:
    op.create_index(op.f("ix_jobs_tenant_id"), "jobs", ["tenant", "id"])
    op.create_index(op.f("ix_jobs_tenant_state_pipeline_id"), "jobs", ["tenant", "state", "pipeline", "id"])
    where = sa.text("error_code IS NOT NULL")
    op.create_index(
        "ix_jobs_tenant_error_code",
        "jobs",
        ["tenant", "error_code", "id"],
        sqlite_where=where,
        postgresql_where=where,
    )
    _replace_index_of_keys("uq_jobs_tenant_idempotency_key", "uq_jobs_idempotency_key_tenant", _KEY_FIRST)
    op.add_column("events", sa.Column("number", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.execute(
        "UPDATE events SET number = numbered.number FROM"
        " (SELECT id, row_number() OVER (PARTITION BY job_id ORDER BY id) AS number FROM events) AS numbered"
        " WHERE events.id = numbered.id"
    )


def downgrade() -> None:
    op.drop_column("events", "number")
    _replace_index_of_keys("uq_jobs_idempotency_key_tenant", "uq_jobs_tenant_idempotency_key", _KEY_FIRST[::-1])
    op.drop_index("ix_jobs_tenant_error_code", table_name="jobs")
    op.drop_index(op.f("ix_jobs_tenant_state_pipeline_id"), table_name="jobs")
    op.drop_index(op.f("ix_jobs_tenant_id"), table_name="jobs")


def _replace_index_of_keys(old: str, new: str, columns: Sequence[str]) -> None:
    where = sa.text("idempotency_key IS NOT NULL")
    op.create_index(new, "jobs", list(columns), unique=True, sqlite_where=where, postgresql_where=where)
    op.drop_index(old, table_name="jobs")
