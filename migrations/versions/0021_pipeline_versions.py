"""Versions of pipelines, with the file that each was first, and which take no new jobs.

Revision: 0021
"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None
release = "0.1.0"


def upgrade() -> None:
    op.create_table(
        "pipeline_versions",
        sa.Column("pipeline", sa.String(100), primary_key=True),
        sa.Column("version", sa.String(20), primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("first_seen_at", sa.Double(), nullable=False),
        sa.Column("draining_at", sa.Double(), nullable=True),
    )


def downgrade() -> None:
    op.drop_table("pipeline_versions")
