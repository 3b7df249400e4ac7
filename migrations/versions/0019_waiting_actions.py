"""Who stopped an action, and whose jobs wait in it for room.

Revision: 0019
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None
release = "0.1.0"


def upgrade() -> None:
    op.add_column("actions", sa.Column("stopped_by", sa.String(100), nullable=True))
    op.add_column("actions", sa.Column("waiting", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("actions", "waiting")
    op.drop_column("actions", "stopped_by")
