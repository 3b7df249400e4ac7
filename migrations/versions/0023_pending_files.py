"""Pending stage runs are counted by their pipeline's file, so the index of them has it.

The index before it goes in the same release, because the new one begins with its columns: a build that knows no files
counts as quickly with it.

Revision: 0023
"""

from alembic import op

from omni_jobs.database.built_index import build_index

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None
release = "0.1.0"

_TABLE, _OLD, _NEW = "stage_runs", "ix_stage_runs_pending", "ix_stage_runs_pending_files"
_PENDING = "state = 'pending'"


def upgrade() -> None:
    build_index(_NEW, _TABLE, ["pipeline", "stage", "pipeline_digest"], where=_PENDING)
    op.drop_index(_OLD, _TABLE, if_exists=True)


def downgrade() -> None:
    build_index(_OLD, _TABLE, ["pipeline", "stage"], where=_PENDING)
    op.drop_index(_NEW, _TABLE, if_exists=True)
