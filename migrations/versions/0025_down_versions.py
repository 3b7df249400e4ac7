"""Of which file of the pipeline an engine is that is down. None: an older build noted it.

Revision: 0025
"""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None
release = "0.1.0"


def upgrade() -> None:
    op.add_column("down_engines", sa.Column("pipeline_digest", sa.String(64), nullable=True))


def downgrade() -> None:
    op.drop_column("down_engines", "pipeline_digest")
