"""A row that readiness checks write.

Revision: 0018
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    table = op.create_table(
        "write_checks",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_write_checks")),
    )
    op.bulk_insert(table, [{"id": 1, "at": 0.0}])


def downgrade() -> None:
    op.drop_table("write_checks")
