"""The traces of jobs: the ``traceparent`` of their submit.

Revision: 0014
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None
release = "0.1.0"


def upgrade() -> None:
    # Not a column of jobs, whose last is the request: SQLite would read that to get there.
    op.create_table(
        "traced_jobs",
        sa.Column("job_id", sa.String(40), primary_key=True),
        sa.Column("traceparent", sa.String(55), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("traced_jobs")
