"""While a backup is under way, no object is deleted.

Revision: 0020
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None
release = "0.1.0"


def upgrade() -> None:
    op.create_table(
        "delete_holds",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("lease_until", sa.Double(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("delete_holds")
