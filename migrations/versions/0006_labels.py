"""The names and values of jobs' metadata, by which lists find the jobs; those of the jobs that are there, too.

Revision: 0006
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None
release = "0.1.0"
made_again = ("job_labels",)

_BATCH = 1000  # jobs
_LABEL_BYTES = 256  # which tenants keep stored for each
_NEXT = sa.text(
    "SELECT id, tenant, metadata FROM jobs WHERE id > :after AND metadata <> '{}' ORDER BY id LIMIT :at_most"
)
_REFERENCE = (
    "ALTER TABLE job_labels ADD CONSTRAINT fk_job_labels_job_id FOREIGN KEY (job_id) REFERENCES jobs (id) "
    "ON DELETE CASCADE NOT VALID"
)
_LOCK_NOT_AVAILABLE = "55P03"
_LOCK_S, _PAUSE_S = 120.0, 0.2
_INSERT = sa.text(
    "INSERT INTO job_labels (label, tenant, job_id) "
    "SELECT * FROM unnest(CAST(:labels AS text[]), CAST(:tenants AS text[]), CAST(:ids AS text[]))"
)


def upgrade() -> None:
    is_sqlite = op.get_context().dialect.name == "sqlite"
    # PostgreSQL locks jobs for the reference: it comes last, and 0007 checks the rows that have it.
    reference = [sa.ForeignKey("jobs.id", ondelete="CASCADE")] if is_sqlite else []
    op.create_table(
        "job_labels",
        sa.Column("label", sa.String(32), primary_key=True),
        sa.Column("tenant", sa.String(64), primary_key=True),
        sa.Column("job_id", sa.String(40), *reference, primary_key=True),
        sqlite_with_rowid=False,
    )
    if op.get_context().as_sql:  # what the next line does, for who asks without doing it
        op.execute("INSERT INTO job_labels SELECT label, tenant, job_id FROM jobs")
    else:
        _fill(op.get_bind())
    op.create_index("ix_job_labels_job_id", "job_labels", ["job_id"])
    if not is_sqlite:
        _refer()


def _refer() -> None:
    """Add the reference. A wait for its lock is given up in time, and tried again without another fill."""
    until = time.monotonic() + _LOCK_S
    while True:
        try:
            with nullcontext() if op.get_context().as_sql else op.get_bind().begin_nested():
                op.execute(_REFERENCE)
            return
        except sa.exc.OperationalError as error:
            if getattr(error.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE or time.monotonic() > until:
                raise
        time.sleep(_PAUSE_S)


def downgrade() -> None:
    op.execute(
        "INSERT INTO stored_bytes (tenant, part, bytes) SELECT tenant, 0, -256 * count(*) FROM job_labels WHERE true "
        "GROUP BY tenant ON CONFLICT (tenant, part) DO UPDATE SET bytes = stored_bytes.bytes + excluded.bytes"
    )
    op.drop_table("job_labels")


def _fill(connection: sa.Connection) -> None:
    stored: Counter[str] = Counter()
    for jobs in _batches(connection):
        rows = [
            (_label_of(name, value), job.tenant, job.id)
            for job in jobs
            for name, value in json.loads(job.metadata).items()
        ]
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("INSERT INTO job_labels (label, tenant, job_id) VALUES (?, ?, ?)", rows)
        else:
            columns = dict(zip(("labels", "tenants", "ids"), map(list, zip(*rows, strict=True)), strict=True))
            connection.execute(_INSERT, columns)
        stored.update(tenant for _, tenant, _ in rows)
    for tenant, count in stored.items():
        _add_stored_bytes(tenant, count * _LABEL_BYTES)


def _batches(connection: sa.Connection) -> Iterator[Sequence[Any]]:
    after = ""
    while jobs := connection.execute(_NEXT, {"after": after, "at_most": _BATCH}).all():
        yield jobs
        after = jobs[-1].id


def _label_of(name: str, value: str) -> str:
    """Return what ``omni_jobs.database.tables.label_of`` returned as this revision was made."""
    text = json.dumps([name, value], separators=(",", ":"))
    return hashlib.blake2b(text.encode("ascii"), digest_size=16).hexdigest()


def _add_stored_bytes(tenant: str, stored: int) -> None:
    op.get_bind().execute(
        sa.text(
            "INSERT INTO stored_bytes (tenant, part, bytes) VALUES (:tenant, 0, :stored) "
            "ON CONFLICT (tenant, part) DO UPDATE SET bytes = stored_bytes.bytes + excluded.bytes"
        ),
        {"tenant": tenant, "stored": stored},
    )
