"""Indexes of the jobs that make a video.

Revision: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_MAKES_VIDEO = """CASE WHEN replace(modalities, '"video"', '') <> modalities THEN 1 END = 1"""
_FOR_ALL = """CASE WHEN replace(modalities, '"video"', '') <> modalities || '' THEN 1 END = 1"""


def upgrade() -> None:
    _create("ix_jobs_video", ["id"], _FOR_ALL)
    _create("ix_jobs_tenant_video", ["tenant", "id"], _MAKES_VIDEO)


def _create(name: str, columns: list[str], where: str) -> None:
    op.create_index(name, "jobs", columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
