"""Indexes of the jobs that make a video.

Revision: 0007
"""

from alembic import op

from omni_jobs.database.built_index import build_index

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None
release = "0.1.0"

_MAKES_VIDEO = """CASE WHEN replace(modalities, '"video"', '') <> modalities THEN 1 END = 1"""
_FOR_ALL = """CASE WHEN replace(modalities, '"video"', '') <> modalities || '' THEN 1 END = 1"""


def upgrade() -> None:
    build_index("ix_jobs_video", "jobs", ["id"], where=_FOR_ALL)
    build_index("ix_jobs_tenant_video", "jobs", ["tenant", "id"], where=_MAKES_VIDEO)


def downgrade() -> None:
    op.drop_index("ix_jobs_tenant_video", "jobs")
    op.drop_index("ix_jobs_video", "jobs")
