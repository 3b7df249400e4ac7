"""What the tests of omni_jobs.jobs do to jobs, in few words."""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from sqlalchemy import Connection, text

from omni_jobs.database.database import Database
from omni_jobs.errors import OmniJobsError
from omni_jobs.identity import PipelineId, StageId
from omni_jobs.jobs import (
    Claim,
    Completion,
    Failure,
    Jobs,
    NewJob,
    NewStage,
    NewWorker,
    Outcome,
    Release,
    SubmitResult,
    new_job_id,
)
from omni_jobs.jobs.keep.stored_bytes import JOB_ROW, LABEL_ROW, STAGE_RUN_ROW
from omni_jobs.retry import RetryLimits
from omni_jobs.storage import ObjectRef

T = TypeVar("T")

TWICE = RetryLimits(worker_lost=2, out_of_memory=2, storage=2)
CHAIN = {"first": [], "second": ["first"]}
DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}
REF = ObjectRef(key="jobs/x/payloads/first/1", size=3, digest="xxh3:" + "0" * 32)
ANY_SCRIPT = "漢字 العربية 😀 \x00 \ud800 e\u0301 \u2028"


class ForgetfulDatabase(Database):
    """Loses the answer to the first commit of every transaction."""

    def run(self, transaction: Callable[[Connection], T]) -> T:
        super().run(transaction)
        return super().run(transaction)


def new_job(graph: dict[str, list[str]] = CHAIN, **changes: Any) -> NewJob:
    values: dict[str, Any] = {
        "job_id": new_job_id(),
        "pipeline": PipelineId("echo", "d"),
        "pipeline_version": "1",
        "request": {"messages": []},
        "modalities": ["text"],
        "stages": [NewStage(name, inputs, f"echo.{name}", TWICE) for name, inputs in graph.items()],
        "seed": 2**63 - 1,
        "request_digest": "r",
    }
    return NewJob(**(values | changes))


def submit_one(jobs: Jobs, job: NewJob) -> SubmitResult:
    """Submit a job, and return its result. Raises the error that is its result instead."""
    [result] = jobs.submit_all([job])
    if isinstance(result, OmniJobsError):
        raise result
    return result


def register(
    jobs: Jobs,
    worker_id: str,
    stage: str = "first",
    *,
    slot: str | None = None,
    slots: int = 4,
    kept: int = 0,
    lease_s: float = 60.0,
    version: str = "1",
    digest: str = "d",
) -> set[str]:
    """In the slot of another: that one is known to be dead."""
    worker = NewWorker(
        worker_id,
        slot or worker_id,
        StageId(PipelineId("echo", digest), stage),
        "host",
        1,
        slots,
        version,
        slots_for_high=kept,
    )
    dead = jobs.slot_holder(worker.slot)
    return jobs.register_worker(worker, lease_s, instead_of=dead)


def register_each(jobs: Jobs, graph: Iterable[str] = CHAIN, **options: Any) -> None:
    """A worker for each stage, with the stage's name for its id."""
    for stage in graph:
        register(jobs, stage, stage, **options)


def claim(jobs: Jobs, worker_id: str, at_most: int = 100) -> list[Claim]:
    """Claim for a worker that runs nothing."""
    return list(jobs.claim(worker_id, at_most).claims)


def done(claimed: Claim, worker_id: str, **more: Any) -> Completion:
    return Completion(claimed.stage_run_id, claimed.attempt, worker_id, **more)


def failed(claimed: Claim, worker_id: str, error: OmniJobsError, **more: Any) -> Failure:
    return Failure(claimed.stage_run_id, claimed.attempt, worker_id, error, **more)


def fail(jobs: Jobs, failure: Failure) -> Outcome:
    [outcome] = jobs.report([failure])
    return outcome


def release(jobs: Jobs, held: Iterable[tuple[int, int]], worker_id: str) -> set[str]:
    """Hand back a worker's attempts (stage run id, number), and return the queues to ring."""
    outcomes = jobs.report([Release(*attempt, worker_id) for attempt in held])
    return {queue for outcome in outcomes for queue in outcome.queues}


def failures(jobs: Jobs, claimed: Claim) -> dict[str, int]:
    """What the row of a stage run counts of its attempts that failed, by retry class."""
    with jobs._db.begin() as tx:
        counted = text("SELECT failures FROM stage_runs WHERE id = :id")
        return json.loads(tx.execute(counted, {"id": claimed.stage_run_id}).scalar_one() or "{}")  # type: ignore[no-any-return]


def complete_all(jobs: Jobs, worker_id: str) -> set[str]:
    """Claim and complete all that waits for the worker, and return the queues to ring."""
    outcomes = jobs.report([done(claimed, worker_id) for claimed in claim(jobs, worker_id)])
    return {queue for outcome in outcomes for queue in outcome.queues}


def complete_each(jobs: Jobs, graph: Iterable[str] = CHAIN) -> None:
    """Complete all that waits, one stage after the other, by the workers of ``register_each``."""
    for stage in graph:
        complete_all(jobs, stage)


def stages(jobs: Jobs, job_id: str) -> dict[str, str]:
    return {stage.name: stage.status.value for stage in jobs.get(job_id).stages}


def pass_time(database: Database, seconds: float) -> None:
    """As if ``seconds`` had gone by: what was to come comes so much earlier."""
    with database.begin() as tx:
        tx.execute(text("UPDATE stage_runs SET due = due - :s"), {"s": seconds})
        tx.execute(text("UPDATE stage_runs SET queue_deadline = queue_deadline - :s"), {"s": seconds})
        tx.execute(text("UPDATE jobs SET deadline = deadline - :s"), {"s": seconds})
        tx.execute(text("UPDATE jobs SET finished_at = finished_at - :s, prune_at = prune_at - :s"), {"s": seconds})
        tx.execute(text("UPDATE events SET at = at - :s"), {"s": seconds})
        tx.execute(text("UPDATE watched_jobs SET until = until - :s"), {"s": seconds})
        tx.execute(text("UPDATE abandoned_jobs SET at = at - :s"), {"s": seconds})
        tx.execute(text("UPDATE first_tries SET at = at - :s"), {"s": seconds})
        tx.execute(text("UPDATE actions SET lease_until = lease_until - :s"), {"s": seconds})
        tx.execute(text("UPDATE workers SET lease_until = lease_until - :s"), {"s": seconds})


def stored_bytes(database: Database) -> dict[str, int]:
    """What the rows of each tenant's jobs hold, summed up here; tenants without any are left out."""
    sums: Counter[str] = Counter()
    with database.begin() as tx:
        for job in tx.execute(text("SELECT tenant, request, metadata, media, inputs_gone FROM jobs")):
            sums[job.tenant] += len(job.request.encode()) + len(job.metadata.encode()) + JOB_ROW
            sums[job.tenant] += LABEL_ROW * len(json.loads(job.metadata))
            sums[job.tenant] += 0 if job.inputs_gone else sum(medium["size"] for medium in json.loads(job.media))
        of_runs = "SELECT tenant, result, payload_bytes, payload_gone FROM stage_runs JOIN jobs ON jobs.id = job_id"
        for run in tx.execute(text(of_runs)):
            sums[run.tenant] += STAGE_RUN_ROW + len((run.result or "").encode())
            sums[run.tenant] += 0 if run.payload_gone else run.payload_bytes or 0
        for artifact in tx.execute(text("SELECT tenant, ref FROM artifacts JOIN jobs ON jobs.id = job_id")):
            sums[artifact.tenant] += json.loads(artifact.ref)["size"]
    return {tenant: stored for tenant, stored in sums.items() if stored}


def counted_bytes(database: Database) -> dict[str, int]:
    """What the counters say of each tenant; those that are 0 are left out."""
    with database.begin() as tx:
        rows = tx.execute(text("SELECT tenant, sum(bytes) FROM stored_bytes GROUP BY tenant"))
        return {tenant: int(stored) for tenant, stored in rows if stored}
