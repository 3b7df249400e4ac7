"""A stage run names the snapshot from which its next attempt goes on.

Revision: 0013
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("stage_runs", sa.Column("snapshot", sa.Text(), nullable=True))


def downgrade() -> None:
    # The build before finds the objects as orphans.
    op.drop_column("stage_runs", "snapshot")
