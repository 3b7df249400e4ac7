"""Indexes of a tenant's own jobs, and events numbered within their job.

Revision: 0016
"""

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass
