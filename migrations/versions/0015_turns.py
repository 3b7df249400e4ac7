"""Jobs have a cost, those that a quota lets in get turns of their own, and what tenants keep stored is counted.

Jobs of before cost 1. Those that are held are let in in the order in which they were, before later ones.

Revision: 0015
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

# What stored_bytes of omni_jobs/database/*.sql says, of all jobs.
_STORED = """
INSERT INTO stored_bytes (tenant, part, bytes)
SELECT tenant, 0, sum(bytes) FROM (
    SELECT tenant, {length}(request) + {length}(metadata) AS bytes FROM jobs
    UNION ALL
    SELECT tenant, {size} FROM jobs, {each} WHERE inputs_gone = {false}
    UNION ALL
    SELECT jobs.tenant, coalesce({length}(run.result), 0)
                        + CASE WHEN run.payload_gone THEN 0 ELSE coalesce(run.payload_bytes, 0) END
    FROM stage_runs AS run JOIN jobs ON jobs.id = run.job_id
    UNION ALL
    SELECT jobs.tenant, {ref_size} FROM artifacts JOIN jobs ON jobs.id = artifacts.job_id
) AS kept GROUP BY tenant
"""
_OF_DIALECT = {
    "sqlite": {
        "length": "length",
        "size": "json_extract(value, '$.size')",
        "each": "json_each(media)",
        "false": "0",
        "ref_size": "json_extract(ref, '$.size')",
    },
    "postgresql": {
        "length": "octet_length",
        "size": "(value ->> 'size')::bigint",
        "each": "json_array_elements(media::json) AS each(value)",
        "false": "false",
        "ref_size": "(ref::json ->> 'size')::bigint",
    },
}


def upgrade() -> None:
    op.add_column("quota_jobs", _cost())
    _add_cost_to_jobs()
    lines = ("high", "normal", "low")
    op.create_table(
        "quota_turns",
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("pipeline", sa.String(100), nullable=False),
        *(sa.Column(line, sa.BigInteger(), nullable=False) for line in lines),
        sa.PrimaryKeyConstraint("tenant", "pipeline", name=op.f("pk_quota_turns")),
    )
    op.execute(
        "INSERT INTO quota_turns (pipeline, tenant, high, normal, low)"
        " SELECT '', tenant, 0, max(turn), max(turn) FROM quota_jobs GROUP BY tenant"
    )
    op.create_table(
        "stored_bytes",
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "part", name=op.f("pk_stored_bytes")),
    )
    op.execute(_STORED.format(**_OF_DIALECT[op.get_bind().dialect.name]))


def _cost() -> sa.Column[float]:
    return sa.Column("cost", sa.Double(), server_default=sa.text("1"), nullable=False)


def _add_cost_to_jobs() -> None:
    if op.get_bind().dialect.name != "sqlite":
        op.add_column("jobs", _cost())
        return
    if op.get_bind().execute(sa.text("PRAGMA foreign_keys")).scalar():
        raise RuntimeError("foreign keys are on: the copy of the table would take the stage runs with it")
    names = [column["name"] for column in sa.inspect(op.get_bind()).get_columns("jobs")]
    names.remove("request")
    # Who reads a row of SQLite up to a column reads all that stands before it, and a request may be megabytes.
    with op.batch_alter_table("jobs", recreate="always", partial_reordering=[(*names, "cost", "request")]) as jobs:
        jobs.add_column(_cost())


def downgrade() -> None:
    # The build before lets in jobs with the turns that they have; those that are held have none yet.
    op.execute(
        "UPDATE stage_runs SET turn ="
        " (SELECT quota.turn FROM quota_jobs AS quota WHERE quota.job_id = stage_runs.job_id)"
        " + coalesce((SELECT max(workers.turn) FROM workers WHERE workers.pipeline = stage_runs.pipeline), 0)"
        " WHERE job_id IN (SELECT quota.job_id FROM quota_jobs AS quota WHERE NOT quota.is_let_in)"
    )
    op.drop_table("stored_bytes")
    op.drop_table("quota_turns")
    for table in ("quota_jobs", "jobs"):
        op.drop_column(table, "cost")
