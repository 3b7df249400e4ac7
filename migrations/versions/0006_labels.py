"""The names and values of jobs' metadata, by which lists find the jobs; those of the jobs that are there, too.

Revision: 0006
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_BATCH = 1000  # jobs
_LABEL_BYTES = 256  # which tenants keep stored for each
_NEXT = sa.text(
    "SELECT id, tenant, metadata FROM jobs WHERE id > :after AND metadata <> '{}' ORDER BY id LIMIT :at_most"
)


def upgrade() -> None:
    labels = op.create_table(
        "job_labels",
        sa.Column("label", sa.String(32), primary_key=True),
        sa.Column("tenant", sa.String(64), primary_key=True),
        sa.Column("job_id", sa.String(40), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sqlite_with_rowid=False,
    )
    stored: Counter[str] = Counter()
    for jobs in _batches(op.get_bind()):
        rows = [
            {"label": _label_of(name, value), "tenant": job.tenant, "job_id": job.id}
            for job in jobs
            for name, value in json.loads(job.metadata).items()
        ]
        op.bulk_insert(labels, rows)
        stored.update(row["tenant"] for row in rows)
    op.create_index("ix_job_labels_job_id", "job_labels", ["job_id"])
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
