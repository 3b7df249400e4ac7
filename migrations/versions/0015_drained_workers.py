"""Since when a worker is drained.

Revision: 0015
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None
release = "0.1.0"


def upgrade() -> None:
    op.add_column("workers", sa.Column("drained_at", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("workers", "drained_at")
