"""Record the snapshots that workers have stored of their running attempts, several in one transaction.

A stage run has the newest snapshot and the one before, from which its next attempt goes on if the newest is damaged.
Older ones become garbage with the record, as these two do with the stage run's end
(``omni_jobs.jobs.life.transition``). An attempt that is lost or handed back leaves them to the next, whose claim has
them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from omni_jobs.database.statement import run_all
from omni_jobs.database.tables import encode_json
from omni_jobs.jobs.keep.garbage import INSERT_GARBAGE
from omni_jobs.jobs.life.transition import SET_SNAPSHOT_IF_HELD, JobTransition
from omni_jobs.jobs.values import NewSnapshot, StoredSnapshot
from omni_jobs.states import StageRunState


def record_snapshots(tx: Connection, snapshots: Sequence[NewSnapshot]) -> list[bool]:
    """Record stored snapshots of running attempts. Those of one stage run come oldest first.

    The last of a stage run and the one before it are kept, and older ones become garbage. Return in the same order
    whether each was taken, now or by an earlier call whose answer was lost. That is True also for one that is garbage
    now. False: the attempt is not this worker's any more, and the caller deletes the object. The jobs are locked,
    because an end must find the snapshot that it deletes.
    """
    transition = JobTransition.of_stage_runs(tx, [snapshot.stage_run_id for snapshot in snapshots])
    held: dict[int, list[NewSnapshot]] = {}  # by stage run
    recorded = []
    for new in snapshots:
        run = transition.find(StageRunState.RUNNING, new.stage_run_id, new.attempt, new.worker_id)
        recorded.append(run is not None or _is_recorded(transition, new))
        if run is not None:
            held.setdefault(run.id, []).append(new)
    rows: list[tuple[Any, ...]] = []
    garbage: list[tuple[str, str]] = []
    for stage_run_id, (*older, newest) in sorted(held.items()):
        run = transition.runs[stage_run_id]
        if _is_recorded(transition, newest):
            continue
        *gone, stored = _chain(run.snapshot, [*older, newest])
        garbage += [(run.job_id, each.ref.key) for each in gone]
        rows.append((run.id, newest.attempt, newest.worker_id, encode_json(stored.to_json())))
    run_all(tx, [(SET_SNAPSHOT_IF_HELD, rows), (INSERT_GARBAGE, garbage)], exact=1)
    return recorded


def _chain(recorded: StoredSnapshot | None, new: Sequence[NewSnapshot]) -> list[StoredSnapshot]:
    """Return the snapshots that are not kept any longer, and then the newest one with the one before it."""
    kept: list[StoredSnapshot] = []
    if recorded is not None:
        kept = [*([] if recorded.before is None else [recorded.before]), replace(recorded, before=None)]
    kept += [StoredSnapshot(each.ref, each.steps_done, each.attempt) for each in new]
    *gone, newest = kept
    before = gone.pop() if gone else None
    return [*gone, replace(newest, before=before)]


def _is_recorded(transition: JobTransition, new: NewSnapshot) -> bool:
    """Return whether the row has this snapshot already, because the answer to an earlier commit was lost.

    It may have it though the attempt is over by now: then its object is the next attempt's.
    """
    run = transition.runs.get(new.stage_run_id)
    return run is not None and run.snapshot is not None and new.ref.key in run.snapshot.keys
