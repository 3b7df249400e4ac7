"""Workers say how often they renew, so that whoever watches a silent one knows how long to wait.

Revision: 0008
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("heartbeat_s", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("workers", "heartbeat_s")
