"""Actions on many jobs, which go on from where they stand.

Revision: 0018
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None
release = "0.1.0"


def upgrade() -> None:
    op.create_table(
        "actions",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("verb", sa.String(20), nullable=False),
        sa.Column("wanted", sa.Text(), nullable=False),
        sa.Column("query", sa.Text(), nullable=False),
        sa.Column("actor", sa.String(100), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=True),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("changed", sa.Integer(), nullable=False),
        sa.Column("skipped", sa.Text(), nullable=False),
        sa.Column("cursor", sa.String(40), nullable=True),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("trouble", sa.Text(), nullable=True),
        sa.Column("holder", sa.String(40), nullable=True),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
    )
    op.create_index("ix_actions_state_lease_until", "actions", ["state", "lease_until"])
    op.create_index("ix_actions_created_at_id", "actions", ["created_at", "id"])
    op.create_index("ix_actions_tenant_created_at_id", "actions", ["tenant", "created_at", "id"])


def downgrade() -> None:
    op.drop_table("actions")
