"""By what errors of attempts are alike, and whose they are.

Revision: 0012
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempt_errors", sa.Column("fingerprint", sa.String(32), nullable=True))
    op.add_column("attempt_errors", sa.Column("tenant", sa.String(64), nullable=True))
    op.create_index("ix_attempt_errors_fingerprint_at", "attempt_errors", ["fingerprint", "at"])
    op.create_index("ix_attempt_errors_at_fingerprint", "attempt_errors", ["at", "fingerprint"])
    op.create_index("ix_attempt_errors_tenant_at_fingerprint", "attempt_errors", ["tenant", "at", "fingerprint"])
