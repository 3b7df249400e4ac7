"""Which builds may go on with the schema of a newer one.

Revision: 0022
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None
release = "0.1.0"
made_again = ("oldest_builds",)
oldest = "0022"  # builds before it refuse every newer schema


def upgrade() -> None:
    op.create_table(
        "oldest_builds",
        sa.Column("revision", sa.String(32), primary_key=True),
        sa.Column("release", sa.String(32), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("oldest_builds")
