"""What tenants keep stored, and the turns of jobs that are let in.

Revision: 0015
"""

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass
