"""The tables. What their columns mean stands in ``omni_jobs/database/tables.py``.

Revision: 0001
"""

from functools import partial
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import CreateTable

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None
release = "0.1.0"

_ALL = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
_key: Any = partial(sa.Column, primary_key=True)
_filled: Any = partial(sa.Column, nullable=False)
_column: Any = sa.Column  # which may be empty
_BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # SQLite numbers rows only in INTEGER PRIMARY KEY
_DIGEST, _NAME, _TENANT = sa.String(64), sa.String(100), sa.String(64)
_SECONDS = sa.Double()


def _row_of(column: str) -> sa.ForeignKey:
    """Return the reference to a row without which this one goes."""
    return sa.ForeignKey(column, ondelete="CASCADE")


def _index(name: str, *columns: str, where: str, unique: bool = False) -> sa.Index:
    return sa.Index(name, *columns, unique=unique, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


def _lines() -> list[Any]:
    return [_filled(line, sa.BigInteger()) for line in ("high", "normal", "low")]


# For PostgreSQL. Every row of these is written three to seven times and then never again, and a fifth of a large table
# is long to wait for.
_VACUUM = {"autovacuum_vacuum_scale_factor": 0.02, "autovacuum_analyze_scale_factor": 0.02}

sa.Table(
    "jobs",
    _ALL,
    _key("id", sa.String(40)),
    _filled("state", sa.String(16)),
    _filled("pipeline", _NAME),
    _filled("pipeline_version", sa.String(20)),
    _filled("pipeline_digest", _DIGEST),
    _filled("modalities", sa.Text()),
    _filled("request_digest", sa.String(80)),
    _column("idempotency_key", sa.String(255)),
    _filled("media", sa.Text()),
    _filled("metadata", sa.Text()),
    _filled("seed", sa.BigInteger()),
    _filled("tenant", _TENANT),
    _column("error", sa.Text()),
    _column("error_code", sa.String(40)),
    _column("ending", sa.String(16)),
    _column("deadline", _SECONDS),
    _filled("retries", sa.Integer()),
    _filled("created_at", _SECONDS),
    _column("started_at", _SECONDS),
    _column("finished_at", _SECONDS),
    _column("prune_at", _SECONDS),
    _filled("payloads_gone", sa.Boolean()),
    _filled("inputs_gone", sa.Boolean()),
    _filled("artifacts_gone", sa.Boolean()),
    _filled("priority", sa.String(10)),
    _filled("cost", sa.Double()),
    # The last, because who reads a row of SQLite up to a column reads all before it, and a request may be megabytes.
    _filled("request", sa.Text()),
    sa.Index(None, "state", "pipeline", "id"),
    sa.Index(None, "tenant", "state", "id", "pipeline"),
    # The key first: else PostgreSQL may take an index that begins with the tenant instead.
    _index(
        *("uq_jobs_idempotency_key_tenant", "idempotency_key", "tenant"),
        where="idempotency_key IS NOT NULL",
        unique=True,
    ),
    _index("ix_jobs_backlog", "state", "pipeline", "tenant", where="state = 'queued'"),
    _index("ix_jobs_deadline", "deadline", where="finished_at IS NULL AND deadline IS NOT NULL"),
    _index("ix_jobs_error_code", "error_code", "id", where="error_code IS NOT NULL"),
    _index("ix_jobs_tenant_error_code", "tenant", "error_code", "id", where="error_code IS NOT NULL"),
    _index("ix_jobs_prune_at", "prune_at", where="prune_at IS NOT NULL"),
    postgresql_with=_VACUUM,
)

_LINE = ("pipeline", "stage", "pipeline_digest", "turn")
sa.Table(
    "stage_runs",
    _ALL,
    _key("id", _BIG_ID),
    _filled("job_id", sa.String(40), _row_of("jobs.id")),
    _filled("position", sa.Integer()),
    _filled("pipeline", _NAME),
    _filled("stage", _NAME),
    _filled("queue", sa.String(200)),
    _filled("inputs", sa.Text()),
    _filled("has_successors", sa.Boolean()),
    _column("retries", sa.Text()),
    _column("queue_limit_s", sa.Double()),
    _filled("state", sa.String(16)),
    _column("reason", sa.String(40)),
    _filled("attempt", sa.Integer()),
    _column("failures", sa.Text()),
    _column("owner", sa.String(200)),
    _column("due", _SECONDS),
    _column("queue_deadline", _SECONDS),
    _column("queued_at", _SECONDS),
    _column("started_at", _SECONDS),
    _column("finished_at", _SECONDS),
    _column("progress", sa.Text()),
    _column("result", sa.Text()),
    _column("payload_ref", sa.Text()),
    _column("payload_inline", sa.LargeBinary()),
    _column("payload_bytes", sa.BigInteger()),
    _filled("payload_gone", sa.Boolean()),
    _column("finish_reason", sa.String(40)),
    _column("warnings", sa.Text()),
    _filled("turn", sa.BigInteger()),
    _column("apart", sa.String(200)),
    _filled("pipeline_digest", _DIGEST),
    _column("snapshot", sa.Text()),
    _filled("is_high", sa.Boolean()),
    sa.UniqueConstraint("job_id", "position"),
    _index("ix_stage_runs_queued", *_LINE, "id", where="state = 'queued'"),
    _index("ix_stage_runs_apart", *_LINE, where="state = 'queued' AND apart IS NOT NULL"),
    _index("ix_stage_runs_high", *_LINE, "id", where="is_high AND state || '' = 'queued'"),
    _index("ix_stage_runs_running", "owner", "pipeline", "stage", where="state = 'running'"),
    _index("ix_stage_runs_pending", "pipeline", "stage", where="state = 'pending'"),
    _index("ix_stage_runs_queue_deadline", "queue_deadline", where="state = 'queued' AND queue_deadline IS NOT NULL"),
    # A new version of a row that finds room on its page, and changes nothing that is indexed, touches no index.
    postgresql_with={**_VACUUM, "fillfactor": 70},
)

sa.Table(
    "attempt_errors",
    _ALL,
    _key("stage_run_id", _BIG_ID, _row_of("stage_runs.id")),
    _key("attempt", sa.Integer()),
    _filled("worker", sa.String(200)),
    _filled("error", sa.Text()),
    _filled("at", _SECONDS),
)

sa.Table(
    "artifacts",
    _ALL,
    _key("job_id", sa.String(40), _row_of("jobs.id")),
    _key("name", sa.String(200)),
    _filled("stage_run_id", _BIG_ID, _row_of("stage_runs.id"), index=True),
    _filled("media_type", sa.String(100)),
    _filled("ref", sa.Text()),
    _filled("created_at", _SECONDS),
)

sa.Table(
    "events",
    _ALL,
    _key("id", _BIG_ID),
    _filled("job_id", sa.String(40), index=True),
    _filled("type", sa.String(40)),
    _filled("data", sa.Text()),
    _filled("at", _SECONDS),
    _filled("number", sa.Integer()),
)

sa.Table(
    "garbage",
    _ALL,
    _key("id", _BIG_ID),
    _filled("owner", sa.String(40), index=True),
    _filled("what", sa.String(512)),
)

sa.Table(
    "workers",
    _ALL,
    _key("id", sa.String(200)),
    _filled("slot", sa.String(200), unique=True),
    _filled("pipeline", _NAME),
    _filled("stage", _NAME),
    _filled("host", sa.String(255)),
    _filled("pid", sa.Integer()),
    _filled("slots", sa.Integer()),
    _filled("started_at", _SECONDS),
    _filled("renewed_at", _SECONDS),
    _filled("lease_until", _SECONDS, index=True),
    _filled("pipeline_version", sa.String(20)),
    _filled("pipeline_digest", _DIGEST),
    _column("pid_space", sa.String(100)),
    _column("pid_started", sa.BigInteger()),
    _filled("loading", sa.Boolean()),
    _filled("heartbeat_s", sa.Double()),
    _column("turn", sa.BigInteger()),
    _column("run_s", sa.Double()),
    _filled("slots_for_high", sa.Integer()),
)

sa.Table("paused_stages", _ALL, _key("pipeline", _NAME), _key("stage", _NAME), _filled("at", _SECONDS))

sa.Table(
    "estimates",
    _ALL,
    _key("id", _BIG_ID),
    _filled("stage_run_id", _BIG_ID, unique=True),
    _filled("pipeline", _NAME),
    _filled("stage", _NAME),
    _filled("at", _SECONDS),
    _filled("point_s", sa.Double()),
    _filled("low_s", sa.Double()),
    _filled("high_s", sa.Double()),
    _column("waited_s", sa.Double()),
    sa.Index(None, "pipeline", "stage", "id"),
)

sa.Table(
    "calibrations",
    _ALL,
    _key("pipeline", _NAME),
    _key("stage", _NAME),
    *(_filled(name, sa.Double()) for name in ("low_factor", "high_factor", "low_tail", "high_tail")),
)

sa.Table(
    "tenants",
    _ALL,
    _key("name", _TENANT),
    _filled("weight", sa.Double(), server_default=sa.text("1")),
    _filled("limits", sa.Text(), server_default="{}"),
    _filled("created_at", _SECONDS),
)

sa.Table(
    "api_keys",
    _ALL,
    _key("id", sa.String(40)),
    _filled("tenant", _TENANT, _row_of("tenants.name"), index=True),
    _column("name", _NAME),
    _filled("scopes", sa.Text()),
    _filled("hint", sa.String(20)),
    _filled("digest", _DIGEST, unique=True),
    _filled("created_at", _SECONDS),
    _column("expires_at", _SECONDS),
    _column("revoked_at", _SECONDS),
    _column("used_at", _SECONDS),
)

sa.Table(
    "sessions",
    _ALL,
    _key("digest", _DIGEST),
    _filled("key_id", sa.String(40), _row_of("api_keys.id")),
    _filled("created_at", _SECONDS),
    _filled("ends_at", _SECONDS, index=True),
    sa.Index(None, "key_id", "created_at"),
)

sa.Table("turns", _ALL, _key("pipeline", _NAME), _key("tenant", _TENANT), *_lines())

sa.Table(
    "quota_jobs",
    _ALL,
    _key("job_id", sa.String(40), _row_of("jobs.id")),
    _filled("tenant", _TENANT),
    _filled("turn", sa.BigInteger()),
    _filled("is_let_in", sa.Boolean()),
    _filled("cost", sa.Double()),
    sa.Index(None, "tenant", "is_let_in", "turn", "job_id"),
)

sa.Table("quota_turns", _ALL, _key("tenant", _TENANT), _key("pipeline", _NAME), *_lines())

sa.Table("stored_bytes", _ALL, _key("tenant", _TENANT), _key("part", sa.Integer()), _filled("bytes", sa.BigInteger()))

_write_checks = sa.Table("write_checks", _ALL, _key("id", sa.Integer(), autoincrement=False), _filled("at", _SECONDS))


def upgrade() -> None:
    # In one order, because among indexes that cost alike PostgreSQL takes the newest; SQLAlchemy keeps them in a set. A
    # worker on an empty table keeps the plan with which it looks for suspects: it must not look through the whole line.
    indexes = sorted(
        (index for table in _ALL.tables.values() for index in table.indexes),
        key=lambda index: (index.name == "ix_stage_runs_apart", str(index.name)),
    )
    for table in _ALL.sorted_tables:
        op.execute(CreateTable(table))  # without its indexes
    for index in indexes:
        index.create(op.get_bind())
    op.bulk_insert(_write_checks, [{"id": 1, "at": 0.0}])
