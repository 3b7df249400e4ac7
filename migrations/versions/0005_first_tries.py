"""The requests of clients that try again, so that a repeated one finds the job of its first try.

Revision: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None
release = "0.1.0"


def upgrade() -> None:
    op.create_table(
        "first_tries",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("request", sa.String(71), nullable=False),
        sa.Column("at", sa.Double(), nullable=False, index=True),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("is_lost", sa.Boolean(), nullable=False),
    )
    op.create_index("ix_first_tries_request_tenant", "first_tries", ["request", "tenant"])


def downgrade() -> None:
    op.drop_table("first_tries")
