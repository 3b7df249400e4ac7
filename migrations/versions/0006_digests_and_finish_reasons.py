"""Workers say which pipeline file they have; stage runs say why their tokens ended, and warn.

Digests of jobs were of the whole file until now, which no worker compares: they become "", unknown,
so that any worker may take those jobs.

Revision: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Of all jobs: one that has ended may be retried.
    op.execute("UPDATE jobs SET pipeline_digest = '' WHERE pipeline_digest <> ''")
    op.add_column(
        "workers", sa.Column("pipeline_version", sa.String(length=20), server_default=sa.text("''"), nullable=False)
    )
    op.add_column(
        "workers", sa.Column("pipeline_digest", sa.String(length=64), server_default=sa.text("''"), nullable=False)
    )
    op.add_column("stage_runs", sa.Column("finish_reason", sa.String(length=40), nullable=True))
    op.add_column("stage_runs", sa.Column("warnings", sa.Text(), nullable=True))


def downgrade() -> None:
    for table, column in (
        ("stage_runs", "warnings"),
        ("stage_runs", "finish_reason"),
        ("workers", "pipeline_digest"),
        ("workers", "pipeline_version"),
    ):
        op.drop_column(table, column)
