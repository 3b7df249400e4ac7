"""``referred``: the objects that the rows of a database refer to."""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, select

from omni_jobs.database.tables import ArtifactRow, JobRow, SharedObjectRow, StageRunRow
from omni_jobs.jobs import StoredSnapshot
from omni_jobs.states import StageRunState
from omni_jobs.storage import ObjectRef

_AT_ONCE = 1000  # rows


def referred(tx: Connection) -> Iterator[ObjectRef]:
    """Yield the ref of each object that the jobs of a transaction's moment refer to, each once."""
    shared = set(tx.execute(select(SharedObjectRow.key)).scalars())  # of forks, which refer to objects of other jobs
    seen = set()
    for ref in _of_all(tx):
        if ref.key in shared:
            if ref.key in seen:
                continue
            seen.add(ref.key)
        yield ref


def _of_all(tx: Connection) -> Iterator[ObjectRef]:
    after: Any = ""
    while jobs := tx.execute(
        select(JobRow.id, JobRow.media, JobRow.inputs_gone).where(JobRow.id > after).order_by(JobRow.id).limit(_AT_ONCE)
    ).all():
        after = jobs[-1].id
        for job in jobs:
            yield from (_ref(medium) for medium in job.media if not job.inputs_gone)
        ids = [job.id for job in jobs]
        yield from _of_stage_runs(tx, ids)
        refs = select(ArtifactRow.ref).where(ArtifactRow.job_id.in_(ids))
        yield from (_ref(found) for found in tx.execute(refs).scalars())


def _of_stage_runs(tx: Connection, job_ids: list[str]) -> Iterator[ObjectRef]:
    table = StageRunRow
    columns = (table.state, table.payload_ref, table.payload_gone, table.snapshot)
    for run in tx.execute(select(*columns).where(table.job_id.in_(job_ids))):
        if run.payload_ref is not None and not run.payload_gone:
            yield _ref(run.payload_ref)
        if run.snapshot is not None and not StageRunState(run.state).is_final:
            snapshot = StoredSnapshot.of(run.snapshot)
            yield snapshot.ref
            if snapshot.before is not None:
                yield snapshot.before.ref


def _ref(fields: dict[str, Any]) -> ObjectRef:
    return ObjectRef.model_validate({name: fields[name] for name in ObjectRef.model_fields})
