"""What workers say of themselves, and what they have counted.

Revision: 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None
release = "0.1.0"


def upgrade() -> None:
    op.add_column("workers", sa.Column("info", sa.Text(), nullable=True))
    op.add_column("workers", sa.Column("stats", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("workers", "stats")
    op.drop_column("workers", "info")
