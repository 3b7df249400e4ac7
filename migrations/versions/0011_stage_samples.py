"""Samples of the stages over time, and of which worker what has been counted in them.

Revision: 0011
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None
release = "0.1.0"

_STANDING = ("span_s", "queued", "running", "pending", "workers", "loading", "slots")


def upgrade() -> None:
    op.create_table(
        "stage_samples",
        sa.Column("step_s", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("pipeline", sa.String(100), primary_key=True),
        sa.Column("stage", sa.String(100), primary_key=True),
        sa.Column("at", sa.BigInteger(), primary_key=True, autoincrement=False),
        *(sa.Column(name, sa.Double(), nullable=False) for name in _STANDING),
        sa.Column("stats", sa.Text(), nullable=False),
    )
    op.create_index("ix_stage_samples_step_s_at", "stage_samples", ["step_s", "at"])
    op.create_table(
        "sampled_workers",
        sa.Column("worker_id", sa.String(200), primary_key=True),
        sa.Column("pipeline", sa.String(100), nullable=False),
        sa.Column("stage", sa.String(100), nullable=False),
        sa.Column("sampled", sa.Text(), nullable=True),
        sa.Column("final", sa.Text(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
    )
    op.create_table(
        "samplings",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("at", sa.Double(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("samplings")
    op.drop_table("sampled_workers")
    op.drop_table("stage_samples")
