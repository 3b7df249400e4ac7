"""Garbage: notes of objects in the store to delete; and the search for orphans, objects to which no row refers.

A transaction that lets go of objects writes such notes, so that after a crash the next pruner still finds them.

A fork refers to objects of the job that it was forked from. So a note says only that one job has let go of an object;
``still_shared`` tells which of the noted ones another job holds. Nobody can take hold of an object any more to which no
row refers: who forks a job copies what its rows say, under the lock that the job needs to let go of them.
"""

import re
from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import Connection, delete, select

from omni_jobs.database.statement import Statements
from omni_jobs.database.tables import ArtifactRow, GarbageRow, JobRow, SharedObjectRow, StageRunRow
from omni_jobs.jobs.values import Garbage, StoredSnapshot
from omni_jobs.states import StageRunState
from omni_jobs.storage.keys import JOBS

_sql = Statements(__file__)
INSERT_GARBAGE = _sql.bulk("insert_garbage", "owner what")
_KEY = re.compile(
    rf"{JOBS}/[0-9a-f]{{2}}/(?P<job>[^/]+)/(?P<kind>inputs|payloads|artifacts)/(?:(?P<stage>[^/]+)/(?P<attempt>\d+))?"
)


def garbage(tx: Connection, at_most: int = 500, after: int = 0) -> list[Garbage]:
    """Return up to ``at_most`` notes of objects to delete, the oldest first, those with an id above ``after``.

    Call ``forget_garbage`` after deleting the objects.
    """
    notes = select(GarbageRow.id, GarbageRow.what, GarbageRow.owner).where(GarbageRow.id > after)
    rows = tx.execute(notes.order_by(GarbageRow.id).limit(at_most))
    return [Garbage(row.id, row.what, row.owner) for row in rows]


def note_shared_objects(tx: Connection, job_ids: Collection[str]) -> None:
    """Note the objects of other jobs that these share as garbage. Call it as they let go of some, before their rows go.

    Their own objects lie below prefixes, which are noted as a whole.
    """
    if job_ids:
        shared = select(SharedObjectRow.job_id, SharedObjectRow.key).where(SharedObjectRow.job_id.in_(set(job_ids)))
        INSERT_GARBAGE.run(tx, [(row.job_id, row.key) for row in tx.execute(shared)])


def still_shared(tx: Connection, notes: Sequence[Garbage]) -> set[str]:
    """Return the keys among these notes that another job still refers to: their notes may go, their objects must not.

    Prefixes are left out, because ``orphans`` tells what below them may go.
    """
    of_objects = [note for note in notes if not note.what.endswith("/")]
    keys = {note.what for note in of_objects}
    shared = set(tx.execute(select(SharedObjectRow.key).where(SharedObjectRow.key.in_(keys))).scalars())
    # The rows of a share go with the fork, and the job that made the object may be there still.
    shared |= {note.what for note in of_objects if (match := _KEY.match(note.what)) and match["job"] != note.owner}
    return shared - orphans(tx, shared)


def forget_garbage(tx: Connection, ids: Collection[int]) -> None:
    """Remove the garbage notes with these ids. Call it once their objects are deleted."""
    if ids:
        tx.execute(delete(GarbageRow).where(GarbageRow.id.in_(sorted(ids))))


def orphans(tx: Connection, keys: Iterable[str]) -> set[str]:
    """Return those of these keys of jobs' objects to which no row refers, of no job. Other keys are left out.

    The objects of an attempt that still runs count as referred to, and the snapshot of a stage run that has not ended.
    The media of a job whose submit is under way do not, so do not pass the keys of young objects.
    """
    parsed = {key: match for key in keys if (match := _KEY.match(key)) is not None}
    if not parsed:
        return set()
    forks = select(SharedObjectRow.job_id).where(SharedObjectRow.key.in_(parsed)).distinct()
    job_ids = sorted({*(match["job"] for match in parsed.values()), *tx.execute(forks).scalars()})
    media = {
        row.id: set() if row.inputs_gone else {item["key"] for item in row.media}
        for row in tx.execute(select(JobRow.id, JobRow.media, JobRow.inputs_gone).where(JobRow.id.in_(job_ids)))
    }
    kept: set[str] = set().union(*media.values())
    running: set[tuple[str, str, int]] = set()
    table = StageRunRow
    columns = (table.job_id, table.stage, table.attempt, table.state, table.payload_ref, table.snapshot)
    for run in tx.execute(select(*columns).where(table.job_id.in_(job_ids))):
        if run.payload_ref is not None:
            kept.add(run.payload_ref["key"])
        if run.snapshot is not None and not StageRunState(run.state).is_final:
            kept.update(StoredSnapshot.of(run.snapshot).keys)
        if run.state == StageRunState.RUNNING.value:
            running.add((run.job_id, run.stage, run.attempt))
    kept.update(
        ref["key"] for ref in tx.execute(select(ArtifactRow.ref).where(ArtifactRow.job_id.in_(job_ids))).scalars()
    )
    return {
        key
        for key, match in parsed.items()
        if key not in kept
        and not (match["attempt"] and (match["job"], match["stage"], int(match["attempt"])) in running)
    }
