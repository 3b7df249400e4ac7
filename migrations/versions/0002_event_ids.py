"""An event's id never comes twice on SQLite either, and old events are found by their time.

Revision: 0002
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        # Without AUTOINCREMENT SQLite gives the id of the last row anew once that is deleted. Only a copy can have it.
        with op.batch_alter_table("events", recreate="always", table_kwargs={"sqlite_autoincrement": True}):
            pass
    op.create_index("ix_events_at", "events", ["at"])
