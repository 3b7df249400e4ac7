"""An event's id never comes twice on SQLite either, and old events are found by their time.

Revision: 0002
"""

import sqlalchemy as sa
from alembic import op

from omni_jobs.database.built_index import build_index

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
release = "0.1.0"


def upgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        # Without AUTOINCREMENT SQLite gives the id of the last row anew once that is deleted. Only a copy can have it.
        with op.batch_alter_table(
            "events", recreate="always", copy_from=_events(), table_kwargs={"sqlite_autoincrement": True}
        ):
            pass
    build_index("ix_events_at", "events", ["at"])


def _events() -> sa.Table:
    return sa.Table(
        "events",
        sa.MetaData(naming_convention={"pk": "pk_%(table_name)s"}),
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("job_id", sa.String(40), nullable=False),
        sa.Column("type", sa.String(40), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Index("ix_events_job_id", "job_id"),
    )


def downgrade() -> None:
    op.drop_index("ix_events_at", "events")  # SQLite's AUTOINCREMENT stays: older builds work with it
