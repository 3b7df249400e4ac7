"""The jobs that keep their payloads, the forks, and the objects that forks share with the jobs they are forked from.

Revision: 0009
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None
release = "0.1.0"


def upgrade() -> None:
    op.create_table("keeping_jobs", sa.Column("job_id", sa.String(40), primary_key=True))
    op.create_table(
        "forks",
        sa.Column("job_id", sa.String(40), primary_key=True),
        sa.Column("origin", sa.String(40), nullable=False),
    )
    op.add_column("stage_runs", sa.Column("taken_from", sa.String(40), nullable=True))
    op.create_table(
        "shared_objects",
        sa.Column("key", sa.String(240), primary_key=True),
        sa.Column("job_id", sa.String(40), primary_key=True, index=True),
    )


def downgrade() -> None:
    op.drop_table("shared_objects")
    op.drop_column("stage_runs", "taken_from")
    op.drop_table("forks")
    op.drop_table("keeping_jobs")
