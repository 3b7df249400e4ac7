"""Stages can be paused, workers tell how long stage runs take, and estimates of waits are kept and checked.

Revision: 0011
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("run_s", sa.Double(), nullable=True))
    op.create_table(
        "paused_stages",
        *_stage(),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("pipeline", "stage", name=op.f("pk_paused_stages")),
    )
    big_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "estimates",
        sa.Column("id", big_id, nullable=False),
        sa.Column("stage_run_id", big_id, nullable=False),
        *_stage(),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("point_s", sa.Double(), nullable=False),
        sa.Column("low_s", sa.Double(), nullable=False),
        sa.Column("high_s", sa.Double(), nullable=False),
        sa.Column("waited_s", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_estimates")),
        sa.UniqueConstraint("stage_run_id", name=op.f("uq_estimates_stage_run_id")),
    )
    op.create_index(op.f("ix_estimates_pipeline_stage_id"), "estimates", ["pipeline", "stage", "id"])
    op.create_table(
        "calibrations",
        *_stage(),
        sa.Column("low_factor", sa.Double(), nullable=False),
        sa.Column("high_factor", sa.Double(), nullable=False),
        sa.Column("low_tail", sa.Double(), nullable=False),
        sa.Column("high_tail", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("pipeline", "stage", name=op.f("pk_calibrations")),
    )


def _stage() -> tuple[sa.Column[str], sa.Column[str]]:
    return sa.Column("pipeline", sa.String(100), nullable=False), sa.Column("stage", sa.String(100), nullable=False)


def downgrade() -> None:
    for table in ("calibrations", "estimates", "paused_stages"):
        op.drop_table(table)
    op.drop_column("workers", "run_s")
