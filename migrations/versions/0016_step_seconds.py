"""How long the steps of a stage run's last attempt took.

Revision: 0016
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None
release = "0.1.0"


def upgrade() -> None:
    op.add_column("stage_runs", sa.Column("steps", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("stage_runs", "steps")
