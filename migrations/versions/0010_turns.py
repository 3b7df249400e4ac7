"""Stage runs are claimed in the order of their turns, and no message names one.

Stage runs of before have turn 0: they go before all others, the oldest first.

Revision: 0010
"""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_LIMITS = {"worker_lost": 3, "fenced": 10}  # of a stage that names none


def upgrade() -> None:
    op.create_table(
        "turns",
        sa.Column("pipeline", sa.String(100), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("high", sa.BigInteger(), nullable=False),
        sa.Column("normal", sa.BigInteger(), nullable=False),
        sa.Column("low", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("pipeline", "tenant", name=op.f("pk_turns")),
    )
    op.add_column("workers", sa.Column("turn", sa.BigInteger(), nullable=True))
    _add_priority()
    op.add_column("stage_runs", sa.Column("turn", sa.BigInteger(), server_default=sa.text("0"), nullable=False))
    op.add_column("stage_runs", sa.Column("apart", sa.String(200), nullable=True))
    op.add_column(
        "stage_runs", sa.Column("pipeline_digest", sa.String(64), server_default=sa.text("''"), nullable=False)
    )
    op.execute(
        "UPDATE stage_runs SET pipeline_digest = (SELECT pipeline_digest FROM jobs WHERE jobs.id = stage_runs.job_id)"
        " WHERE state IN ('pending', 'queued', 'running')"
    )
    _set_suspects_apart()
    op.drop_index(op.f("ix_stage_runs_queued"), table_name="stage_runs")
    op.drop_column("stage_runs", "announce_at")
    _create_partial_index(
        "ix_stage_runs_queued", ["pipeline", "stage", "pipeline_digest", "turn", "id"], where="state = 'queued'"
    )
    _create_partial_index(
        "ix_stage_runs_apart",
        ["pipeline", "stage", "pipeline_digest", "turn"],
        where="state = 'queued' AND apart IS NOT NULL",
    )


def _add_priority() -> None:
    priority = sa.Column("priority", sa.String(10), server_default=sa.text("'normal'"), nullable=False)
    if op.get_bind().dialect.name != "sqlite":
        op.add_column("jobs", priority)
        return
    if op.get_bind().execute(sa.text("PRAGMA foreign_keys")).scalar():
        raise RuntimeError("foreign keys are on: the copy of the table would take the stage runs with it")
    names = [column["name"] for column in sa.inspect(op.get_bind()).get_columns("jobs")]
    names.remove("request")
    # Who reads a row of SQLite up to a column reads all that stands before it, and a request may be megabytes.
    with op.batch_alter_table("jobs", recreate="always", partial_reordering=[(*names, "priority", "request")]) as jobs:
        jobs.add_column(priority)


def _set_suspects_apart() -> None:
    """Mark the queued stage runs that one more lost worker would quarantine."""
    connection = op.get_bind()
    rows = connection.execute(
        sa.text("SELECT id, failures, retries FROM stage_runs WHERE state = 'queued' AND failures IS NOT NULL")
    )
    suspects = [row.id for row in rows if _is_suspect(json.loads(row.failures), json.loads(row.retries or "{}"))]
    for stage_run_id in suspects:
        connection.execute(sa.text("UPDATE stage_runs SET apart = '' WHERE id = :id"), {"id": stage_run_id})


def _is_suspect(failures: dict[str, int], retries: dict[str, Any]) -> bool:
    return any(0 < failures.get(name, 0) >= retries.get(name, limit) for name, limit in _LIMITS.items())


def downgrade() -> None:
    op.drop_index(op.f("ix_stage_runs_apart"), table_name="stage_runs")
    op.drop_index(op.f("ix_stage_runs_queued"), table_name="stage_runs")
    op.add_column("stage_runs", sa.Column("announce_at", sa.Double(), nullable=True))
    op.execute("UPDATE stage_runs SET announce_at = due WHERE state = 'queued'")
    _create_partial_index("ix_stage_runs_queued", ["pipeline", "stage", "announce_at"], where="state = 'queued'")
    for table, column in (
        ("stage_runs", "pipeline_digest"),
        ("stage_runs", "apart"),
        ("stage_runs", "turn"),
        ("jobs", "priority"),
        ("workers", "turn"),
    ):
        op.drop_column(table, column)
    op.drop_table("turns")


def _create_partial_index(name: str, columns: list[str], *, where: str) -> None:
    op.create_index(name, "stage_runs", columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
