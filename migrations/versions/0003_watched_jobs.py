"""The jobs that are watched, and the text that their stages have made so far.

Revision: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None
release = "0.1.0"


def upgrade() -> None:
    op.create_table(
        "watched_jobs",
        sa.Column("job_id", sa.String(40), primary_key=True),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False, index=True),
    )
    op.create_table(
        "text_pieces",
        sa.Column("job_id", sa.String(40), sa.ForeignKey("watched_jobs.job_id", ondelete="CASCADE"), primary_key=True),
        sa.Column("stage_run_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("start", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("stop", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("text_pieces")
    op.drop_table("watched_jobs")
