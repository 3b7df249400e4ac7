"""The jobs whose clients have left before their answer.

Revision: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
release = "0.1.0"


def upgrade() -> None:
    op.create_table(
        "abandoned_jobs",
        sa.Column("job_id", sa.String(40), primary_key=True),
        sa.Column("at", sa.Double(), nullable=False, index=True),
    )


def downgrade() -> None:
    op.drop_table("abandoned_jobs")
