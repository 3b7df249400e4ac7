"""By what errors of attempts are alike, and whose they are.

Revision: 0012
"""

import sqlalchemy as sa
from alembic import op

from omni_jobs.database.built_index import add_column, build_index

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None
release = "0.1.0"


def upgrade() -> None:
    add_column("attempt_errors", sa.Column("fingerprint", sa.String(32), nullable=True))
    add_column("attempt_errors", sa.Column("tenant", sa.String(64), nullable=True))
    build_index("ix_attempt_errors_fingerprint_at", "attempt_errors", ["fingerprint", "at"])
    build_index("ix_attempt_errors_at_fingerprint", "attempt_errors", ["at", "fingerprint"])
    build_index("ix_attempt_errors_tenant_at_fingerprint", "attempt_errors", ["tenant", "at", "fingerprint"])


def downgrade() -> None:
    for name in ("tenant_at_fingerprint", "at_fingerprint", "fingerprint_at"):
        op.drop_index(f"ix_attempt_errors_{name}", "attempt_errors")
    op.drop_column("attempt_errors", "tenant")
    op.drop_column("attempt_errors", "fingerprint")
