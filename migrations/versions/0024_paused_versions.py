"""Stages that are paused of one version of a pipeline alone.

Revision: 0024
"""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None
release = "0.1.0"


def upgrade() -> None:
    op.create_table(
        "paused_versions",
        sa.Column("pipeline", sa.String(100), primary_key=True),
        sa.Column("version", sa.String(20), primary_key=True),
        sa.Column("stage", sa.String(100), primary_key=True),
        sa.Column("at", sa.Double(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("paused_versions")
