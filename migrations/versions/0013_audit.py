"""Who did what to what, and when.

Revision: 0013
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None
release = "0.1.0"


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("actor", sa.String(100), nullable=False),
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("target", sa.String(255), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=True),
        sa.Column("details", sa.Text(), nullable=False),
    )
    op.create_index("ix_audit_at_id", "audit", ["at", "id"])
    op.create_index("ix_audit_tenant_at_id", "audit", ["tenant", "at", "id"])
    op.create_index("ix_audit_target_at_id", "audit", ["target", "at", "id"])


def downgrade() -> None:
    op.drop_table("audit")
