"""Workers say by what they are known to live, so that nobody takes the slot of one that does.

Revision: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("pid_space", sa.String(100), nullable=True))
    op.add_column("workers", sa.Column("pid_started", sa.BigInteger(), nullable=True))
    op.add_column("workers", sa.Column("loading", sa.Boolean(), nullable=True))


def downgrade() -> None:
    for name in ("loading", "pid_started", "pid_space"):
        op.drop_column("workers", name)
