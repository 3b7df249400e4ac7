"""Stored bytes: how much each tenant keeps stored, whether its jobs have ended or not.

The requests and metadata of its jobs as JSON, their media, and the results, payloads and artifacts of their stage runs,
until each is deleted; and JOB_ROW, STAGE_RUN_ROW and LABEL_ROW for what else stands in their rows and indexes, because
a job without any content fills a database, too. Left out is what is short-lived or bounded for each job: progress,
snapshots, events, errors (``retry_job``).

Every transaction that stores or deletes one of these adds the difference to a row of its tenant. A tenant has several
such rows, one for each part of the processes, because transactions that change the same row wait for each other. These
rows are locked after all others but those of usage, sorted by tenant, and who holds one waits for those alone.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection

from omni_jobs.database.statement import Statements, listed
from omni_jobs.database.tables import encode_json

_sql = Statements(__file__)
JOB_ROW: Final = 1024
"""The bytes that a job takes beside its contents, with its events and all their indexes."""
STAGE_RUN_ROW: Final = 512
"""The same of a stage run."""
LABEL_ROW: Final = 256
"""The same of a name and value of a job's metadata, by which lists find the job."""

PARTS: Final = 16
"""The most rows that a tenant has, because so many processes add to rows of their own."""
ADD_STORED_BYTES = _sql.bulk("add_stored_bytes", "tenant part bytes")


def own_part() -> int:
    """Return the part of the processes to which this one belongs."""
    return os.getpid() % PARTS


def rows_to_add(changes: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """Return the rows of ADD_STORED_BYTES for these changes in bytes, by tenant."""
    part = own_part()
    return [(tenant, part, change) for tenant, change in sorted(changes.items()) if change]


def add(tx: Connection, changes: Mapping[str, int]) -> None:
    """Add ``changes``, in bytes, to what each tenant keeps. Call it at the transaction's end."""
    ADD_STORED_BYTES.run(tx, rows_to_add(changes))


def of_media(media: Sequence[Mapping[str, Any]]) -> int:
    """Return the bytes of a job's media, {key, size, …} each."""
    return sum(int(medium["size"]) for medium in media)


def of_empty_job(stages: int, labels: int) -> int:
    """Return the bytes that a job takes beside its contents; ``labels``: the names that its metadata have."""
    return JOB_ROW + stages * STAGE_RUN_ROW + labels * LABEL_ROW


def of_request(request: Mapping[str, Any], metadata: Mapping[str, Any]) -> int:
    """Return the bytes of a job's request and metadata as they will be stored. It encodes them, which may take long."""
    return len(encode_json(dict(request))) + len(encode_json(dict(metadata)))


def of_jobs(tx: Connection, job_ids: Iterable[str]) -> dict[str, int]:
    """Return what is stored of these jobs, by tenant. It reads all their rows."""
    rows = _sql["stored_bytes_of_jobs"].rows(tx, {"ids": listed(job_ids)})
    return {tenant: int(stored) for tenant, stored in rows}


def change(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return by how much what is stored has changed, by tenant."""
    return {tenant: after.get(tenant, 0) - before.get(tenant, 0) for tenant in {*before, *after}}


def of_tenant(tx: Connection, tenant: str) -> int:
    """Return how many bytes a tenant keeps stored."""
    [(stored,)] = _sql["stored_bytes_of_tenant"].rows(tx, {"tenant": tenant})
    return int(stored)
