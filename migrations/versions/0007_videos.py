"""Indexes of the jobs that make a video. On PostgreSQL also the check of the labels that 0006 has made.

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
    if op.get_context().dialect.name == "postgresql":
        # The labels of jobs that were deleted while 0006 filled them; since its end, labels go with their job.
        op.execute("DELETE FROM job_labels WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.id = job_id)")
        op.execute("ALTER TABLE job_labels VALIDATE CONSTRAINT fk_job_labels_job_id")
    build_index("ix_jobs_video", "jobs", ["id"], where=_FOR_ALL)
    build_index("ix_jobs_tenant_video", "jobs", ["tenant", "id"], where=_MAKES_VIDEO)


def downgrade() -> None:
    op.drop_index("ix_jobs_tenant_video", "jobs")
    op.drop_index("ix_jobs_video", "jobs")
