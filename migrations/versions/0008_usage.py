"""What stage runs and tenants have used.

Revision: 0008
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None
release = "0.1.0"

_AMOUNTS = (
    "attempts",
    "worker_s",
    "device_s",
    "prompt_tokens",
    "completion_tokens",
    "heard_s",
    "sound_s",
    "pictures",
    "frames",
)


def upgrade() -> None:
    op.add_column("stage_runs", sa.Column("usage", sa.Text(), nullable=True))
    op.create_table(
        "usage_days",
        sa.Column("tenant", sa.String(64), primary_key=True),
        sa.Column("day", sa.Integer(), primary_key=True, autoincrement=False, index=True),
        sa.Column("pipeline", sa.String(100), primary_key=True),
        sa.Column("stage", sa.String(100), primary_key=True),
        sa.Column("part", sa.Integer(), primary_key=True, autoincrement=False),
        *(sa.Column(name, sa.Double(), nullable=False) for name in _AMOUNTS),
    )


def downgrade() -> None:
    op.drop_table("usage_days")
    op.drop_column("stage_runs", "usage")
