"""What a tenant keeps stored has its jobs' rows too, because many small jobs fill a database as few large ones do.

Revision: 0020
"""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

# JOB_ROW and STAGE_RUN_ROW of omni_jobs/jobs/stored_bytes.py, of all jobs.
_ADD_ROWS = """
INSERT INTO stored_bytes (tenant, part, bytes)
SELECT tenant, 0, {sign} sum(bytes) FROM (
    SELECT tenant, 1024 AS bytes FROM jobs
    UNION ALL
    SELECT jobs.tenant, 512 FROM stage_runs AS run JOIN jobs ON jobs.id = run.job_id
) AS kept WHERE true GROUP BY tenant
ON CONFLICT (tenant, part) DO UPDATE SET bytes = stored_bytes.bytes + excluded.bytes
"""


def upgrade() -> None:
    op.execute(_ADD_ROWS.format(sign="+"))


def downgrade() -> None:
    op.execute(_ADD_ROWS.format(sign="-"))
