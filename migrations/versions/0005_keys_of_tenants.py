"""An idempotency key is its tenant's own; SQLite keeps a job's request behind all else of its row.

Revision: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_KEY = "uq_jobs_idempotency_key"
_OF_TENANT = "uq_jobs_tenant_idempotency_key"


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        _check_that_nothing_cascades()
        names = [column["name"] for column in sa.inspect(op.get_bind()).get_columns("jobs")]
        # Who reads a row of SQLite up to a column reads all that stands before it, and a request may be megabytes.
        names.append(names.pop(names.index("request")))
        with op.batch_alter_table("jobs", recreate="always", partial_reordering=[tuple(names)]) as jobs:
            jobs.drop_constraint(_KEY, type_="unique")
    else:
        op.drop_constraint(_KEY, "jobs", type_="unique")
    op.create_index(
        _OF_TENANT,
        "jobs",
        ["tenant", "idempotency_key"],
        unique=True,
        sqlite_where=sa.text("idempotency_key IS NOT NULL"),
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )


def downgrade() -> None:
    """Fails where two tenants have used the same key."""
    op.drop_index(_OF_TENANT, table_name="jobs")
    if op.get_bind().dialect.name == "sqlite":
        _check_that_nothing_cascades()
    with op.batch_alter_table("jobs") as jobs:
        jobs.create_unique_constraint(_KEY, ["idempotency_key"])


def _check_that_nothing_cascades() -> None:
    """SQLite copies the table and drops the old one, and what refers to its rows would be deleted with them."""
    found = op.get_bind().execute(sa.text("SELECT count(*) FROM stage_runs LIMIT 1")).scalar()
    if found and op.get_bind().execute(sa.text("PRAGMA foreign_keys")).scalar():
        raise RuntimeError("foreign keys are on")
