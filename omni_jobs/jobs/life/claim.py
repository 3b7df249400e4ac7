"""Claim: give a worker the next stage runs of its stage, by their turns, many in one transaction.

A claim waits for no lock: it passes over stage runs that another transaction has locked, and does not start a job
that another has locked, because that one is about to end the job or to start it. A suspect (``omni_jobs.retry``) is
claimed by itself, before all others, and only by a worker that runs nothing else. A busy worker that meets one sets it
apart for itself and claims nothing more until it is idle; other workers pass over it.

A worker that keeps slots for high jobs asks for two numbers of stage runs: those of any jobs, and further ones of high
jobs. The latter are found by an index of their own, because none may stand at the beginning of a long line.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from omni_jobs.database.statement import Statements, execute_pipelined, listed
from omni_jobs.database.tables import decode_json
from omni_jobs.errors import Fenced
from omni_jobs.jobs.life.noted_changes import note
from omni_jobs.jobs.life.successors import retry_limits, stage_names
from omni_jobs.jobs.values import Change, Claim, Claims, StoredSnapshot
from omni_jobs.retry import is_last_chance
from omni_jobs.states import JobState, StageRunState
from omni_jobs.storage import ObjectRef

_sql = Statements(__file__)


def claim(
    tx: Connection, worker_id: str, at_most: int, of_high: int, is_idle: bool, held: Collection[int] | None = None
) -> Claims:
    """Claim the due stage runs of this worker's stage with the lowest turns; none while its lease is over.

    Stage runs are passed over whose rows are locked, or whose job was submitted with another pipeline file than the
    worker's.

    Args:
        at_most: the number of stage runs of any jobs.
        of_high: the number of further stage runs of high jobs; one of the two numbers is above 0.
        is_idle: whether the worker runs nothing. Then it may get a suspect, which is claimed by itself; a busy worker
            gets nothing instead, and the suspect is set apart for it.
        held: the ids of the stage runs that the worker knows it holds, when the answer of an earlier try may have been
            lost, else None. If SQL has others for this worker, they are returned, and no more are claimed.

    Raises:
        Fenced: if the worker has no row any more, because it was lost.
    """
    if held is not None and (lost := _lost_grants(tx, worker_id, held)):
        return Claims(_started(tx, worker_id, lost, of_high), more=True, more_high=True)
    worker = {"worker": worker_id}
    wanted = {name: number for name, number in (("claim_next", at_most), ("claim_next_high", of_high)) if number}
    [(has_lease, suspect)], *granted = execute_pipelined(
        tx,
        [
            (_sql["lease_and_suspect"], worker),
            *((_sql[name], worker | {"at_most": str(number)}) for name, number in wanted.items()),
        ],
    )
    if has_lease is None:
        raise Fenced(f"the lease of worker {worker_id} is gone")
    if not has_lease:  # a renewal brings it back, unless a rescuer or the slot's next worker is faster
        return Claims(())
    if suspect is None:
        claimed = dict(zip(wanted, granted, strict=True))
        return Claims(
            _started(tx, worker_id, [id_ for rows in granted for (id_,) in rows], of_high),
            more=len(claimed.get("claim_next", ())) == at_most > 0,
            more_high=len(claimed.get("claim_next_high", ())) == of_high > 0,
        )
    name = "claim_suspect" if is_idle else "set_suspect_apart"
    [changed] = execute_pipelined(tx, [(_sql[name], worker | {"suspect": str(suspect)})])
    if not changed:  # another worker was faster, and passes the ring on; or its row is locked, and a poll finds it
        return Claims(())
    if not is_idle:
        return Claims((), suspect_waits=True)
    return Claims(_started(tx, worker_id, [suspect], of_high), more=True, more_high=True)


def _lost_grants(tx: Connection, worker_id: str, held: Collection[int]) -> list[int]:
    """Return the ids of the stage runs that the worker runs in SQL, beside those that it knows it holds."""
    [running] = execute_pipelined(tx, [(_sql["running_of_worker"], {"worker": worker_id})])
    return sorted({id_ for (id_,) in running}.difference(held))


def _started(tx: Connection, worker_id: str, ids: Sequence[int], of_high: int) -> list[Claim]:
    """Start the jobs of the stage runs that the worker has claimed, note its turn, and return the claims in order."""
    if not ids:
        return []
    claimed = {"ids": listed(ids)}
    started, stage_runs, jobs, payloads, _ = execute_pipelined(
        tx,
        [
            (_sql["start_unless_locked"], claimed),
            (_sql["claimed_stage_runs"], claimed),
            (_sql["claimed_jobs"], claimed),
            (_sql["claimed_payloads"], claimed),
            (_sql["note_turn_of_line" if of_high else "note_turn"], claimed | {"worker": worker_id}),
        ],
    )
    running, in_progress = StageRunState.RUNNING, JobState.IN_PROGRESS
    job_of_id = {job[0]: job for job in jobs}
    traceparents = {job_id: traceparent for job_id, _, _, _, _, traceparent, _ in jobs}
    note([Change(job_id, in_progress, traceparent=traceparents.get(job_id)) for (job_id,) in started])
    note(
        [
            Change(job_id, running, id_, stage, attempt, worker_id, traceparent=traceparents[job_id])
            for id_, job_id, stage, attempt, *_ in stage_runs
        ]
    )
    payload_of = {(job_id, stage): _payload(ref, inline) for job_id, stage, ref, inline, _ in payloads}
    maker_of = {(job_id, stage): maker for job_id, stage, _, _, maker in payloads if maker is not None}
    return [_claim(run, job_of_id[run[1]], payload_of, maker_of) for run in stage_runs]


def _claim(
    stage_run: Sequence[Any],
    job: Sequence[Any],
    payload_of: Mapping[tuple[str, str], ObjectRef | bytes | None],
    maker_of: Mapping[tuple[str, str], str],
) -> Claim:
    """Make a claim of the columns of ``claimed_stage_runs`` and ``claimed_jobs``.

    The payloads, and the jobs that made those of forks, are given by job and stage.
    """
    stage_run_id, job_id, stage, attempt, inputs, has_successors, retries, failed, is_high, *more = stage_run
    snapshot, waited_s = more
    _, pipeline, request, media, seed, traceparent, watched_since = job
    upstream = stage_names(inputs)
    failures = {} if failed is None else decode_json(failed)
    return Claim(
        stage_run_id=stage_run_id,
        job_id=job_id,
        stage=stage,
        attempt=attempt,
        pipeline=pipeline,
        request=decode_json(request),
        media=() if upstream or media == "[]" else decode_json(media),
        seed=seed,
        upstream={earlier: payload_of[job_id, earlier] for earlier in upstream},
        makers={earlier: maker_of[job_id, earlier] for earlier in upstream if (job_id, earlier) in maker_of},
        has_successors=bool(has_successors),
        alone=bool(failures) and is_last_chance(failures, retry_limits(retries)),
        is_high=bool(is_high),
        watched_since=watched_since,
        waited_s=max(0.0, waited_s),
        traceparent=traceparent,
        snapshot=None if snapshot is None else StoredSnapshot.of(decode_json(snapshot)),
    )


def _payload(ref: str | None, inline: bytes | None) -> ObjectRef | bytes | None:
    return inline if ref is None else ObjectRef.model_validate_json(ref)
