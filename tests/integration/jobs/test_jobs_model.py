"""Random histories of the transitions against a plain model of them, on both databases.

The model knows no SQL, no locks and no batches: a job is a dictionary of stages, a
transition a few assignments, a claim the first of a sorted list. After every step the database must show what it says.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.errors import Conflict, Fenced, ModelError, NotFound, OmniJobsError, OutOfMemory, SlotTaken, WorkerLost
from omni_jobs.identity import PipelineId, StageId
from omni_jobs.jobs import (
    Claims,
    Completion,
    Failure,
    Jobs,
    NewJob,
    NewSnapshot,
    NewStage,
    NewWorker,
    Outcome,
    Release,
    Retention,
    StoredSnapshot,
    new_job_id,
)
from omni_jobs.maintenance.pruner import Pruner
from omni_jobs.new_job import Reuse
from omni_jobs.priority import Priority
from omni_jobs.retry import RetryLimits, is_last_chance
from omni_jobs.settings import Settings
from omni_jobs.storage import ObjectRef, ObjectStore, job_prefix, open_store, payload_key
from tests.integration.job_steps import (
    fail,
    failures,
    release,
    submit_one,
)

GRAPHS: dict[str, dict[str, list[str]]] = {
    "one": {"a": []},
    "chain": {"a": [], "b": ["a"], "c": ["b"]},
    "diamond": {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]},
    "two ends": {"a": [], "b": [], "c": ["a", "b"]},
}
SLOTS = ("a0", "a1", "b0", "b1", "c0", "d0")  # by the stage of their workers
WEIGHTS = {"heavy": 3.0, "plain": 1.0, "light": 0.25}  # of the tenants
DIGESTS = ("d", "d", "d", "e")  # of pipeline files: most are alike, or most claims would be in vain
BESIDE_JOBS = ("keeping_jobs", "traced_jobs", "forks", "shared_objects")  # tables whose rows go with their job
OF_JOBS = ("garbage", "events", "artifacts", "attempt_errors", "stage_runs", *BESIDE_JOBS, "jobs")
LIMITS = RetryLimits(worker_lost=1, fenced=1, out_of_memory=1)
LEASE_S = 1000.0
LONG_S = 1000.0  # longer than any history takes
KEEP_NOTHING = Retention(payloads_s=0, inputs_s=0, artifacts_s=0, events_s=LONG_S, jobs_s=0)
ACTIVE = ("queued", "in_progress")
FINAL = ("completed", "failed", "cancelled", "expired")


@dataclass
class Stage:
    id: int
    name: str
    inputs: list[str]
    turn: int  # its job's
    digest: str  # of the pipeline file
    is_high: bool  # its job's priority
    apart: str | None = None  # a suspect: who waits to run it alone, or ""
    state: str = "pending"
    attempt: int = 0
    failures: dict[str, int] = field(default_factory=dict)  # since the last retry, by class
    errors: dict[int, tuple[str, str]] = field(default_factory=dict)  # attempt → its worker, code
    owner: str | None = None
    due: bool = True
    won_by: tuple[int, str] | None = None  # the (attempt, worker) whose completion counted
    snapshot: StoredSnapshot | None = None  # the newest, with the one before, until its end
    payload: str | None = None  # the key of its object, perhaps of another job's; while it is kept
    is_gone: bool = False  # the payload: it was there

    @property
    def queue(self) -> str:
        return f"echo.{self.name}.high" if self.is_high else f"echo.{self.name}"

    @property
    def is_suspect(self) -> bool:
        return is_last_chance(self.failures, LIMITS)

    def queue_again(self, *, due: bool) -> None:
        self.state, self.owner, self.due = "queued", None, due
        self.apart = "" if self.is_suspect else None


@dataclass
class Job:
    stages: dict[str, Stage]
    digest: str
    keeps_payloads: bool = False
    state: str = "queued"
    ending: str = "cancelled"
    retries: int = 0
    finals: list[str] = field(default_factory=list)  # every end it came to

    def settle(self) -> None:
        """What follows from the stages' states."""
        stages = self.stages.values()
        if self.state in ACTIVE and any(stage.state == "failed" for stage in stages):
            self.state = "failed"
            self.stop_waiting()
        if self.state == "cancelling" and all(stage.state != "running" for stage in stages):
            self.state = self.ending
        if self.state in ACTIVE:
            for stage in stages:
                if stage.state == "pending" and all(self.stages[name].state == "succeeded" for name in stage.inputs):
                    stage.state, stage.due = "queued", True
            if all(stage.state == "succeeded" for stage in stages):
                self.state = "completed"
            self.drop_payloads()
        if self.state in FINAL and len(self.finals) <= self.retries:
            self.finals.append(self.state)

    def drop_payloads(self) -> None:
        """Of a job that goes on or completes: those go that no stage is going to take."""
        for stage in self.stages.values():
            takers = [other.state for other in self.stages.values() if stage.name in other.inputs]
            if stage.payload is not None and not self.keeps_payloads and set(takers) == {"succeeded"}:
                stage.payload, stage.is_gone = None, True

    def stop(self, ending: str) -> None:
        self.state, self.ending = "cancelling", ending
        self.stop_waiting()
        self.settle()

    def run_again(self, names: set[str], turn: int) -> None:
        self.retries += 1
        self.state, self.ending = "queued", "cancelled"
        for name in names:
            stage = self.stages[name]
            stage.state, stage.failures, stage.owner, stage.won_by = "pending", {}, None, None
            stage.apart, stage.payload, stage.is_gone = None, None, False
        for stage in self.stages.values():
            stage.turn, stage.digest = turn, self.digest
        self.settle()

    def followers(self, names: set[str]) -> set[str]:
        """These stages, and all that follow from them."""
        more = {name for name, stage in self.stages.items() if names.intersection(stage.inputs)} - names
        return self.followers(names | more) if more else names

    def lacks(self, names: set[str]) -> bool:
        """Whether these stages would need a payload that is gone."""
        needed = {earlier for name in names for earlier in self.stages[name].inputs} - names
        return any(self.stages[name].is_gone for name in needed)

    def succeeded(self) -> set[str]:
        return {name for name, stage in self.stages.items() if stage.state == "succeeded"}

    def stop_waiting(self) -> None:
        for stage in self.stages.values():
            if stage.state in ("pending", "queued"):
                stage.state = "cancelled"


@dataclass
class Model:
    jobs: dict[str, Job] = field(default_factory=dict)
    workers: dict[str, str] = field(default_factory=dict)  # live ones: id → slot
    digests: dict[str, str] = field(default_factory=dict)  # of every worker's pipeline file
    garbage: set[str] = field(default_factory=set)  # the keys of snapshots that nobody needs any more
    expired: set[str] = field(default_factory=set)  # their lease ran out, nobody has noticed
    late: set[str] = field(default_factory=set)  # jobs past their deadline, nobody has noticed

    def all_stages(self) -> list[tuple[Job, Stage]]:
        return [(job, stage) for job in self.jobs.values() for stage in job.stages.values()]

    def find(self, stage_run_id: int) -> tuple[Job, Stage]:
        return next((job, stage) for job, stage in self.all_stages() if stage.id == stage_run_id)

    def fail(self, job: Job, stage: Stage, error: OmniJobsError) -> None:
        kind = error.retry_class or "other"
        stage.failures[kind] = stage.failures.get(kind, 0) + 1
        stage.errors[stage.attempt] = (stage.owner or "", error.code)
        if job.state not in ACTIVE:
            stage.state = "cancelled"
        elif error.retry_class and stage.failures[kind] <= LIMITS.of(error.retry_class):
            stage.queue_again(due=isinstance(error, WorkerLost | Fenced))
        else:
            stage.state = "failed"
        job.settle()

    def hand_back(self, job: Job, stage: Stage) -> None:
        if job.state in ACTIVE:
            stage.queue_again(due=True)
        else:
            stage.state = "cancelled"
        job.settle()

    def lose(self, workers: set[str | None]) -> None:
        for job, stage in self.all_stages():
            if stage.state == "running" and stage.owner in workers:
                self.fail(job, stage, WorkerLost())

    def forgive(self, worker: str) -> None:
        """The workers that were lost count as fenced, as long as the limit of those is not reached."""
        for _, stage in self.all_stages():
            for attempt, error in stage.errors.items():
                fenced = stage.failures.get("fenced", 0)
                if error == (worker, "worker_lost") and stage.state != "failed" and fenced < LIMITS.fenced:
                    stage.errors[attempt] = (worker, "fenced")
                    if stage.failures.get("worker_lost"):
                        stage.failures |= {"worker_lost": stage.failures["worker_lost"] - 1, "fenced": fenced + 1}
                        stage.apart = "" if stage.is_suspect else None

    def is_live(self, worker: str) -> bool:
        return worker in self.workers and worker not in self.expired

    def line(self, worker: str) -> list[tuple[Job, Stage]]:
        """What the worker may claim, in turn order."""
        name, digest = self.workers[worker][0], self.digests[worker]
        found = [
            (job, stage)
            for job, stage in self.all_stages()
            if stage.state == "queued" and stage.due and stage.name == name and stage.digest == digest
        ]
        return sorted(found, key=lambda each: (each[1].turn, each[1].id))


class JobsMachine(RuleBasedStateMachine):
    """One history."""

    database: Database  # given by the test
    store: ObjectStore  # given by the test

    def __init__(self) -> None:
        super().__init__()
        with self.database.begin() as tx:
            for table in (*OF_JOBS, "workers", "turns", "quota_turns", "stored_bytes", "tenants"):
                tx.execute(text(f"DELETE FROM {table}"))
            insert = text("INSERT INTO tenants (name, weight, created_at) VALUES (:name, :weight, 0)")
            tx.execute(insert, [{"name": name, "weight": weight} for name, weight in WEIGHTS.items()])
        self.store.delete([stored.key for stored in self.store.list()])
        self.jobs = Jobs(self.database)
        self.pruner = Pruner(self.jobs, self.store, Settings())
        self.model = Model()
        self.submitted: dict[str, NewJob] = {}
        self.boots = 0
        self.snapshots = 0
        # Every (stage run, attempt, worker) that was ever claimed: late reports come from here.
        self.claimed: list[tuple[int, int, str]] = []

    # What is submitted, and by whom it is run.

    @initialize(graphs=st.lists(st.sampled_from(sorted(GRAPHS)), min_size=1, max_size=3))
    def begin(self, graphs: list[str]) -> None:
        for slot in SLOTS[::2]:
            self.start_worker(slot, "d")
        self.start_worker("d0", "d")
        for graph in graphs:
            self.submit(graph, "d", "plain", Priority.NORMAL, keeps_payloads=True)

    @rule(
        graph=st.sampled_from(sorted(GRAPHS)),
        digest=st.sampled_from(DIGESTS),
        tenant=st.sampled_from(sorted(WEIGHTS)),
        priority=st.sampled_from(Priority),
        keeps_payloads=st.booleans(),
    )
    def submit(self, graph: str, digest: str, tenant: str, priority: Priority, keeps_payloads: bool) -> None:
        if self.is_full():
            return
        job_id = new_job_id()
        stages = [NewStage(name, inputs, f"echo.{name}", LIMITS) for name, inputs in GRAPHS[graph].items()]
        job = NewJob(
            job_id,
            *(PipelineId("echo", digest), "1", {}, ["text"], stages),
            seed=0,
            request_digest="r",
            tenant=tenant,
            priority=priority,
            expires_in_s=LONG_S,
            keeps_payloads=keeps_payloads,
        )
        self.submitted[job_id] = job
        submitted = submit_one(self.jobs, job)
        new = self.written(job)
        new.settle()
        assert set(submitted.queues) == self.queues(self.queued_ids(new))

    def written(self, job: NewJob) -> Job:
        """Note a job that is in SQL now in the model, all its stages pending."""
        with self.database.begin() as tx:
            query = text("SELECT stage, id FROM stage_runs WHERE job_id = :job ORDER BY position")
            ids = {row.stage: row.id for row in tx.execute(query, {"job": job.job_id})}
        turn, digest, is_high = self.turn_of(job.job_id), job.pipeline.digest, job.priority is Priority.HIGH
        stages = {
            stage.name: Stage(ids[stage.name], stage.name, list(stage.inputs), turn, digest, is_high)
            for stage in job.stages
        }
        new = self.model.jobs[job.job_id] = Job(stages, digest, job.keeps_payloads)
        return new

    def is_full(self) -> bool:
        return sum(job.state in ACTIVE for job in self.model.jobs.values()) >= 5

    @precondition(lambda self: self.model.jobs and not self.is_full())
    @rule(data=st.data(), keeps_payloads=st.booleans())
    def fork(self, data: st.DataObject, keeps_payloads: bool) -> None:
        """A job in any state, more often one of which a stage has succeeded; from a stage behind that, if there is."""
        begun = [job_id for job_id, job in self.model.jobs.items() if job.succeeded()]
        origin_id = data.draw(st.sampled_from(sorted(begun or self.model.jobs)))
        origin = self.model.jobs[origin_id]
        from_stage = data.draw(st.sampled_from(list(origin.stages)))
        reused = origin.stages.keys() - origin.followers({from_stage})
        job = replace(
            self.submitted[origin_id],
            job_id=new_job_id(),
            keeps_payloads=keeps_payloads,
            reuse=Reuse(origin_id, frozenset(reused)),
        )
        self.submitted[job.job_id] = job
        if not reused <= origin.succeeded() or origin.lacks(origin.stages.keys() - reused):
            with pytest.raises(Conflict):
                self.jobs.fork(job)
            return
        forked = self.jobs.fork(job)
        new = self.written(job)
        for name in reused:
            stage, taken = new.stages[name], origin.stages[name]
            stage.state, stage.payload, stage.is_gone = "succeeded", taken.payload, taken.is_gone
        new.settle()
        assert set(forked.queues) == self.queues(self.queued_ids(new))

    def turn_of(self, job_id: str) -> int:
        """What the policy gave the job; other tests say whether it is right."""
        with self.database.begin() as tx:
            turns = tx.execute(text("SELECT DISTINCT turn FROM stage_runs WHERE job_id = :job"), {"job": job_id})
            turn: int = turns.scalar_one()
        return turn

    # Four rules alone, chosen as often as each other: with one for every method most histories end early.
    @rule(
        data=st.data(),
        what=st.sampled_from(
            [
                *("start", "lose lease", "retire", "renew", "rescue", "wait", "wait", "wake"),
                *("cancel", "expire", "prune", "collect", "collect"),
            ]
        ),
    )
    def meanwhile(self, data: st.DataObject, what: str) -> None:
        match what:
            case "cancel" if self.model.jobs:
                self.cancel(data)
            case "start":
                busy = [slot for worker, slot in self.model.workers.items() if self.held(worker)]
                slot = data.draw(st.sampled_from(busy or SLOTS) | st.sampled_from(SLOTS))
                digest = data.draw(st.sampled_from(DIGESTS))
                self.start_worker(slot, digest, loads=data.draw(st.booleans()))
            case "wake":
                self.wake(data)
            case "expire" if self.model.jobs:
                self.expire(data)
            case "prune":
                self.prune()
            case "collect":
                self.collect()
            case "lose lease":
                self.let_a_lease_run_out(data)
            case "retire":
                self.retire(data)
            case "renew":
                self.renew(data)
            case "rescue":
                self.rescue()
            case "wait":
                self.wait_for_retries()

    def start_worker(self, slot: str, digest: str, *, loads: bool = False) -> None:
        self.boots += 1
        worker = f"{slot}-{self.boots}"
        predecessor = next((known for known, its in self.model.workers.items() if its == slot), None)
        new = NewWorker(worker, slot, StageId(PipelineId("echo", digest), slot[0]), "host", 1, 100, "1")
        if predecessor is not None and predecessor not in self.model.expired:
            with pytest.raises(SlotTaken):
                self.jobs.register_worker(new, LEASE_S)
        queues = self.jobs.register_worker(new, LEASE_S, instead_of=self.jobs.slot_holder(slot), loading=loads)
        assert (worker in {view.id for view in self.jobs.workers()}) is not loads
        if loads:
            assert self.jobs.register_worker(new, LEASE_S) == set()
        before = self.claimable()
        if predecessor is not None:
            del self.model.workers[predecessor]
            self.model.expired.discard(predecessor)
            self.model.lose({predecessor})
        self.model.workers[worker] = slot
        self.model.digests[worker] = digest
        assert queues == self.queues(self.claimable() - before)

    def let_a_lease_run_out(self, data: st.DataObject) -> None:
        worker = self.draw_worker(data, self.held)
        self.model.expired.add(worker)
        with self.database.begin() as tx:
            tx.execute(text("UPDATE workers SET lease_until = 0 WHERE id = :id"), {"id": worker})

    def retire(self, data: st.DataObject) -> None:
        worker = self.draw_worker(data)
        before = self.claimable()
        queues = self.jobs.retire_worker(worker)
        self.model.workers.pop(worker, None)
        self.model.expired.discard(worker)
        for job, stage in self.model.all_stages():
            if stage.state == "running" and stage.owner == worker:
                self.model.hand_back(job, stage)
        assert queues == self.queues(self.claimable() - before)

    def wake(self, data: st.DataObject) -> None:
        """A worker that lost its lease and lives stops, and says so."""
        gone = sorted({worker for _, _, worker in self.claimed if not self.is_live(worker)})
        if not gone:
            return
        worker, before = data.draw(st.sampled_from(gone)), self.claimable()
        queues = self.jobs.retire_worker(worker, fenced=Fenced())
        self.jobs.forgive(worker)
        self.model.workers.pop(worker, None)
        self.model.expired.discard(worker)
        for job, stage in self.model.all_stages():
            if stage.state == "running" and stage.owner == worker:
                self.model.fail(job, stage, Fenced())
        self.model.forgive(worker)
        assert queues == self.queues(self.claimable() - before)

    def renew(self, data: st.DataObject) -> None:
        worker = self.draw_worker(data, lambda its: its in self.model.expired)
        if worker not in self.model.workers:
            with pytest.raises(Fenced):
                self.jobs.renew(worker, LEASE_S)
            return
        self.model.expired.discard(worker)  # nobody has taken what it runs
        unwanted = {
            stage.id
            for job, stage in self.model.all_stages()
            if stage.state == "running" and stage.owner == worker and job.state not in ACTIVE
        }
        assert set(self.jobs.renew(worker, LEASE_S).wishes.unwanted) == unwanted

    def rescue(self) -> None:
        before = self.claimable()
        for worker in self.model.expired:
            self.model.workers.pop(worker, None)
        self.model.expired.clear()
        lost = {
            stage.owner
            for _, stage in self.model.all_stages()
            if stage.state == "running" and stage.owner not in self.model.workers
        }
        held = {stage.id for _, stage in self.model.all_stages() if stage.state == "running" and stage.owner in lost}
        self.model.lose(lost)
        for job_id in self.model.late:
            if job_id in self.model.jobs and self.model.jobs[job_id].state in ACTIVE:
                self.model.jobs[job_id].stop("expired")
        self.model.late.clear()
        rescued = self.jobs.rescue()
        assert rescued.freed == len(held)
        # For what was freed it rings, though its job may expire a moment later.
        rung = set(rescued.queues)
        assert self.queues(self.claimable() - before) <= rung <= self.queues(self.claimable() | held)

    def wait_for_retries(self) -> None:
        with self.database.begin() as tx:
            tx.execute(text("UPDATE stage_runs SET due = due - :s"), {"s": 2 * LONG_S})
        for _, stage in self.model.all_stages():
            stage.due = True

    # A stage run's life.

    @precondition(lambda self: self.model.jobs)
    @rule(
        data=st.data(),
        wanted=st.sampled_from([(1, 0), (2, 0), (100, 0), (0, 1), (0, 100), (1, 1), (2, 100)]),
        is_idle=st.booleans(),
        is_lost=st.booleans(),
    )
    def claim(self, data: st.DataObject, wanted: tuple[int, int], is_idle: bool, is_lost: bool) -> None:
        """``wanted``: of any jobs, and further ones of high jobs. ``is_lost``: the answer is."""
        worker = self.draw_worker(data, self.has_work)
        at_most, of_high = wanted
        if worker not in self.model.workers:
            with pytest.raises(Fenced):
                self.jobs.claim(worker, at_most, of_high=of_high)
            return
        if not self.is_live(worker):
            assert self.jobs.claim(worker, at_most, of_high=of_high) == Claims(())
            return
        held = self.held(worker)
        claims = self.jobs.claim(worker, at_most, of_high=of_high, is_idle=is_idle)
        self.check_claims(claims, worker, wanted, is_idle)
        if is_lost:
            again = self.jobs.claim(worker, at_most, of_high=of_high, is_idle=is_idle, held=held, again=True)
            if claims.claims:
                assert again == Claims(claims.claims, more=True, more_high=True)
            else:
                self.check_claims(again, worker, wanted, is_idle)

    @precondition(lambda self: self.claimed)
    @rule(data=st.data(), at_most=st.sampled_from([1, 100]), is_lost=st.booleans())
    def report_and_claim(self, data: st.DataObject, at_most: int, is_lost: bool) -> None:
        """What ended and what comes in its place; ``is_lost``: the first answer, as a ledger may meet it."""
        worker, reports = self.draw_worker(data, self.has_work), self.draw_reports(data)
        completions = [self.completion(*report) for report in reports]
        if worker in self.model.expired:
            won = self.model_complete(reports)
            claims = self.jobs.claim(worker, at_most, reports=completions)
            self.check_outcomes(reports, claims.outcomes, won)
            assert claims == Claims((), outcomes=claims.outcomes)
            return
        if worker not in self.model.workers:
            with pytest.raises(Fenced):
                self.jobs.claim(worker, at_most, reports=completions)
            # What ended may be recorded or not: the ledger tells it again, alone.
            won = self.model_complete(reports)
            self.check_outcomes(reports, self.jobs.report(completions), won)
            return
        held, before = self.held(worker), self.claimable()
        won = self.model_complete(reports)
        queued = self.claimable() - before
        claims = self.jobs.claim(worker, at_most, reports=completions)
        outcomes = claims.outcomes
        self.check_claims(claims, worker, (at_most, 0), is_idle=True)
        if is_lost and claims.claims:
            again = self.jobs.claim(worker, at_most, reports=completions, held=held, again=True)
            outcomes = again.outcomes
            assert again == Claims(claims.claims, more=True, more_high=True, outcomes=outcomes)
        claimed = {claim.stage_run_id for claim in claims.claims}
        assert self.queues(queued - claimed) <= {queue for outcome in outcomes for queue in outcome.queues}
        self.check_outcomes(reports, outcomes, won, claimed=claimed)

    @precondition(lambda self: self.claimed)
    @rule(data=st.data(), at_most=st.sampled_from([1, 100]), is_lost=st.booleans())
    def release_and_claim(self, data: st.DataObject, at_most: int, is_lost: bool) -> None:
        """What is handed back may be claimed again in its own transaction, whose answer may be lost."""
        stage_run_id, attempt, worker = data.draw(self.a_claim())
        if not self.is_live(worker):
            return
        job, stage = self.model.find(stage_run_id)
        held, holds = self.held(worker), self.holds(stage, attempt, worker)
        if holds:
            self.model.hand_back(job, stage)
        reports = [Release(stage_run_id, attempt, worker)]
        claims = self.jobs.claim(worker, at_most, reports=reports)
        assert claims.outcomes[0].won == holds
        self.check_claims(claims, worker, (at_most, 0), is_idle=True)
        # A ledger reports an attempt once, so it hands back no earlier attempt of a stage run that it holds.
        if is_lost and claims.claims and (holds or stage_run_id not in held):
            again = self.jobs.claim(worker, at_most, reports=reports, held=held, again=True)
            assert again.claims == claims.claims

    def held(self, worker: str) -> set[int]:
        return {stage.id for _, stage in self.model.all_stages() if stage.state == "running" and stage.owner == worker}

    def check_claims(self, got: Claims, worker: str, wanted: tuple[int, int], is_idle: bool) -> None:
        """They are the first of the line and of its high jobs, or one suspect alone. Note them in the model."""
        at_most, of_high = wanted
        line = self.model.line(worker)
        suspects = [
            stage
            for _, stage in line
            if stage.apart is not None and (stage.apart == worker or not self.is_live(stage.apart))
        ]
        plain = [stage for _, stage in line if stage.apart is None]
        if suspects and not is_idle:
            assert got == Claims((), suspect_waits=True)
            self.note_apart(worker, [stage for stage in suspects if stage.turn == suspects[0].turn])
            return
        found = [self.model.find(claim.stage_run_id) for claim in got.claims]
        stages = [stage for _, stage in found]
        if suspects:
            assert len(stages) == 1
            assert stages[0] in suspects
            assert stages[0].turn == suspects[0].turn
            assert (got.more, got.more_high) == (True, True)
        else:
            first, rest = plain[:at_most], plain[at_most:]
            high = [stage for stage in rest if stage.is_high][:of_high]
            assert stages == sorted([*first, *high], key=lambda stage: (stage.turn, stage.id))
            assert got.more == (len(first) == at_most > 0)
            assert got.more_high == (len(high) == of_high > 0)
        for claim, (job, stage) in zip(got.claims, found, strict=True):
            stage.state, stage.owner, stage.attempt = "running", worker, stage.attempt + 1
            if job.state == "queued":
                job.state = "in_progress"
            assert (claim.stage, claim.attempt) == (stage.name, stage.attempt)
            assert failures(self.jobs, claim) == stage.failures
            assert (claim.alone, claim.is_high) == (stage.is_suspect, stage.is_high)
            assert claim.snapshot == stage.snapshot
            upstream = {name: job.stages[name].payload for name in stage.inputs}
            found_keys = {name: it.key for name, it in claim.upstream.items() if isinstance(it, ObjectRef)}
            assert found_keys == upstream
            self.claimed.append((stage.id, stage.attempt, worker))

    def note_apart(self, worker: str, suspects: list[Stage]) -> None:
        """One of these has been set apart for the worker: of equal turns the database chose."""
        with self.database.begin() as tx:
            query = text("SELECT id FROM stage_runs WHERE apart = :worker AND state = 'queued'")
            kept = set(tx.execute(query, {"worker": worker}).scalars())
        [chosen, *_] = [stage for stage in suspects if stage.id in kept]
        chosen.apart = worker

    @precondition(lambda self: self.claimed)
    @rule(
        data=st.data(),
        what=st.sampled_from(["complete", "complete", "complete", "fail", "fail for good", "release", "snapshot"]),
    )
    def report(self, data: st.DataObject, what: str) -> None:
        match what:
            case "complete":
                self.complete(data)
            case "fail":
                self.fail(data, OutOfMemory())
            case "fail for good":
                self.fail(data, ModelError())
            case "release":
                self.release(data)
            case "snapshot":
                self.record_snapshots(data)

    def record_snapshots(self, data: st.DataObject) -> None:
        """Several in one trip, also of one stage run and of attempts that are over."""
        new, recorded = [], []
        for stage_run_id, attempt, worker in data.draw(st.lists(self.a_claim(), min_size=1, max_size=4)):
            _, stage = self.model.find(stage_run_id)
            self.snapshots += 1
            ref = ObjectRef(key=f"snapshot-{self.snapshots}", size=1, digest="xxh3:" + "0" * 32)
            new.append(NewSnapshot(stage_run_id, attempt, worker, ref, steps_done=self.snapshots))
            recorded.append(self.holds(stage, attempt, worker))
            if recorded[-1]:
                last = stage.snapshot
                if last is not None and last.before is not None:
                    self.model.garbage.add(last.before.ref.key)
                before = None if last is None else replace(last, before=None)
                stage.snapshot = StoredSnapshot(ref, self.snapshots, attempt, before)
        assert self.jobs.record_snapshots(new) == recorded

    def complete(self, data: st.DataObject) -> None:
        reports = self.draw_reports(data)
        before = self.claimable()
        won = self.model_complete(reports)
        outcomes = self.jobs.report([self.completion(*report) for report in reports])
        rung = {queue for outcome in outcomes for queue in outcome.queues}
        assert self.queues(self.claimable() - before) <= rung
        self.check_outcomes(reports, outcomes, won)

    def key_of(self, stage: Stage, attempt: int) -> str:
        job_id = next(job_id for job_id, job in self.model.jobs.items() if job.stages.get(stage.name) is stage)
        return payload_key(job_id, stage.name, attempt)

    @staticmethod
    def has_successors(job: Job, stage: Stage) -> bool:
        return any(stage.name in other.inputs for other in job.stages.values())

    def completion(self, stage_run_id: int, attempt: int, worker: str) -> Completion:
        job, stage = self.model.find(stage_run_id)
        payload = None
        if self.has_successors(job, stage):
            payload = ObjectRef(key=self.key_of(stage, attempt), size=7, digest="xxh3:" + "0" * 32)
        return Completion(
            stage_run_id, attempt, worker, payload, payload_bytes=7 if payload else 0, result={"by": worker}
        )

    def draw_reports(self, data: st.DataObject) -> list[tuple[int, int, str]]:
        return data.draw(st.lists(self.a_claim(), min_size=1, max_size=5, unique=True))

    def model_complete(self, reports: list[tuple[int, int, str]]) -> list[bool]:
        won = []
        for stage_run_id, attempt, worker in reports:
            job, stage = self.model.find(stage_run_id)
            if self.holds(stage, attempt, worker):
                if job.state in ACTIVE:
                    stage.state, stage.won_by = "succeeded", (attempt, worker)
                    if self.has_successors(job, stage):
                        stage.payload = self.key_of(stage, attempt)
                        self.store.put(stage.payload, [b"payload"])
                else:
                    self.model.hand_back(job, stage)
            won.append(stage.won_by == (attempt, worker))
        for job in self.model.jobs.values():
            job.settle()
        return won

    def check_outcomes(
        self,
        reports: list[tuple[int, int, str]],
        outcomes: Sequence[Outcome],
        won: list[bool],
        claimed: Collection[int] = (),
    ) -> None:
        """``claimed``: what was claimed in the same transaction, and so does not wait any more."""
        assert [outcome.won for outcome in outcomes] == won
        may_ring: set[str] = set()
        for stage_run_id, *_ in reports:
            job, stage = self.model.find(stage_run_id)
            successors = [other for other in job.stages.values() if stage.name in other.inputs]
            may_ring |= {other.queue for other in successors if other.state == "queued" or other.id in claimed}
        for outcome in outcomes:
            assert may_ring.issuperset(outcome.queues)

    def fail(self, data: st.DataObject, error: OmniJobsError) -> None:
        stage_run_id, attempt, worker = data.draw(self.a_claim())
        job, stage = self.model.find(stage_run_id)
        holds = self.holds(stage, attempt, worker)
        if holds:
            self.model.fail(job, stage, error)
        outcome = fail(self.jobs, Failure(stage_run_id, attempt, worker, error))
        if holds:  # on a busy machine a second's pause is over before the next step
            later = "UPDATE stage_runs SET due = due + :s WHERE id = :id AND reason = :r"
            with self.database.begin() as tx:
                tx.execute(text(later), {"s": LONG_S, "id": stage_run_id, "r": "retry_backoff"})
        assert outcome.won or not holds
        assert not outcome.queues

    def release(self, data: st.DataObject) -> None:
        stage_run_id, attempt, worker = data.draw(self.a_claim())
        job, stage = self.model.find(stage_run_id)
        holds = self.holds(stage, attempt, worker)
        if holds:
            self.model.hand_back(job, stage)
        queues = release(self.jobs, [(stage_run_id, attempt)], worker)
        assert queues == ({stage.queue} if holds and stage.state == "queued" else set())

    def cancel(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.model.jobs)))
        job = self.model.jobs[job_id]
        if job.state in ACTIVE:
            job.stop("cancelled")
        assert self.jobs.cancel(job_id) == job.state

    def expire(self, data: st.DataObject) -> None:
        """A job's deadline passes, whatever it is doing."""
        job_id = data.draw(st.sampled_from(sorted(self.model.jobs)))
        with self.database.begin() as tx:
            tx.execute(text("UPDATE jobs SET deadline = 0 WHERE id = :id AND deadline IS NOT NULL"), {"id": job_id})
            has_one = tx.execute(text("SELECT deadline FROM jobs WHERE id = :id"), {"id": job_id}).scalar() is not None
        self.model.late |= {job_id} if has_one else set()
        self.rescue()

    # After its end.

    @precondition(lambda self: any(job.state in FINAL for job in self.model.jobs.values()))
    @rule(data=st.data(), what=st.sampled_from(["retry", "retry", "retry from", "delete"]))
    def after(self, data: st.DataObject, what: str) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.model.jobs)))
        job = self.model.jobs[job_id]
        from_stage = data.draw(st.sampled_from(sorted(job.stages))) if what == "retry from" else None
        again = {name for name, stage in job.stages.items() if stage.state != "succeeded" or name == from_stage}
        lacks = what != "delete" and job.lacks(job.followers(again))
        if job.state not in FINAL or lacks or (what != "delete" and not again):
            refused = partial(self.jobs.delete if what == "delete" else self.jobs.retry, job_id)
            with pytest.raises(Conflict):
                refused() if from_stage is None else refused(from_stage)
        elif what == "delete":
            self.jobs.delete(job_id)
            self.forget([job_id])
        else:
            self.model.late.discard(job_id)
            queues = self.jobs.retry(job_id, from_stage)
            job.run_again(job.followers(again), self.turn_of(job_id))
            assert queues == self.queues(self.queued_ids(job))

    def prune(self) -> None:
        """Everything that may go goes: jobs that have ended, and no other."""
        ended = [job_id for job_id, job in self.model.jobs.items() if job.state in FINAL]
        assert self.jobs.prune(KEEP_NOTHING).jobs == len(ended)
        self.forget(ended)

    def collect(self) -> None:
        """What is noted as garbage goes, but what another job needs: what is left is what some job keeps."""
        self.pruner.collect()
        assert self.jobs.garbage() == []
        self.model.garbage.clear()
        kept = {stage.payload for _, stage in self.model.all_stages() if stage.payload is not None}
        assert {stored.key for stored in self.store.list()} == kept
        assert self.jobs.orphans(kept) == set()

    def forget(self, job_ids: list[str]) -> None:
        for job_id in job_ids:
            gone = {stage.id for stage in self.model.jobs.pop(job_id).stages.values()}
            self.claimed = [claim for claim in self.claimed if claim[0] not in gone]
            with pytest.raises(NotFound):
                self.jobs.get(job_id)
        assert {job_prefix(job_id) for job_id in job_ids} <= {found.what for found in self.jobs.garbage(10_000)}

    # What must hold.

    @invariant()
    def the_database_shows_what_the_model_says(self) -> None:
        views = self.jobs.list(limit=100).jobs
        assert {view.id for view in views} == self.model.jobs.keys()
        for view in views:
            job = self.model.jobs[view.id]
            found = {
                stage.name: (stage.status.value, stage.attempt, {e.attempt: e.code for e in stage.errors}, stage.worker)
                for stage in view.stages
            }
            expected = {
                name: (stage.state, stage.attempt, {a: code for a, (_, code) in stage.errors.items()}, stage.owner)
                for name, stage in job.stages.items()
            }
            assert found == expected
            assert view.status == job.state
            assert (view.finished_at is not None) == view.status.is_final
            assert (view.error is not None) == (job.state in ("failed", "expired") or job.ending == "expired")
            assert view.retries == job.retries
            # Of several the first is named that waits for something else than its turn, a pause before a retry as well.
            held_up = [its for its in job.stages.values() if its.state == "queued"]
            held_up = [its for its in held_up if not its.due or not self.somebody_may(job, its)]
            lost = [its.name for its in held_up[:1] if not self.somebody_may(job, its)]
            waiting = view.waiting if view.waiting and view.waiting.reason == "no_worker" else None
            assert (waiting.stage if waiting else None) == (lost[0] if lost else None)
            ends = [each.type for each in self.jobs.events(view.id) if each.type.removeprefix("job.") in FINAL]
            assert ends == [f"job.{state}" for state in job.finals]
            if view.status == "completed":
                last = list(job.stages.values())[-1]
                assert last.won_by is not None
                assert view.result == {"by": last.won_by[1]}

    @invariant()
    def snapshots_of_ended_stage_runs_are_garbage(self) -> None:
        for _, stage in self.model.all_stages():
            if stage.state in ("succeeded", "failed", "cancelled") and stage.snapshot is not None:
                self.model.garbage |= set(stage.snapshot.keys)
                stage.snapshot = None
        noted = [note.what for note in self.jobs.garbage(10_000) if note.what.startswith("snapshot-")]
        assert sorted(noted) == sorted(self.model.garbage)

    @invariant()
    def what_is_noted_beside_a_job_goes_with_it(self) -> None:
        with self.database.begin() as tx:
            noted = {table: set(tx.execute(text(f"SELECT job_id FROM {table}")).scalars()) for table in BESIDE_JOBS}
        assert noted["keeping_jobs"] == {job_id for job_id, job in self.model.jobs.items() if job.keeps_payloads}
        assert noted["forks"] == {job_id for job_id in self.model.jobs if self.submitted[job_id].reuse is not None}
        assert noted["shared_objects"] <= noted["forks"]

    @invariant()
    def work_waits_only_in_live_jobs(self) -> None:
        for job, stage in self.model.all_stages():
            if stage.state == "queued":
                assert job.state in ACTIVE

    # Helpers.

    def a_claim(self) -> st.SearchStrategy[tuple[int, int, str]]:
        """A claim of the past, those that hold more often."""
        holding = [claim for claim in self.claimed if self.holds(self.model.find(claim[0])[1], *claim[1:])]
        any_claim = st.sampled_from(self.claimed)
        return st.one_of(st.sampled_from(holding), any_claim) if holding else any_claim

    def draw_worker(self, data: st.DataObject, rather: Callable[[str], object] | None = None) -> str:
        """A worker, more often than not one of which ``rather`` holds."""
        known = sorted(self.model.workers) or ["unknown"]
        rather_these = [worker for worker in known if rather is not None and rather(worker)]
        strategy = st.sampled_from(known)
        return data.draw(st.sampled_from(rather_these) | strategy if rather_these else strategy)

    def has_work(self, worker: str) -> bool:
        return self.is_live(worker) and bool(self.model.line(worker))

    def is_live(self, worker: str) -> bool:
        return self.model.is_live(worker)

    def somebody_may(self, job: Job, stage: Stage) -> bool:
        """Whether a live worker of the stage has the job's pipeline file."""
        return any(
            self.is_live(worker) and worker[0] == stage.name and job.digest == self.model.digests[worker]
            for worker in self.model.workers
        )

    @staticmethod
    def holds(stage: Stage, attempt: int, worker: str) -> bool:
        return stage.state == "running" and stage.attempt == attempt and stage.owner == worker

    @staticmethod
    def queued_ids(job: Job) -> set[int]:
        return {stage.id for stage in job.stages.values() if stage.state == "queued"}

    def claimable(self) -> set[int]:
        return {stage.id for _, stage in self.model.all_stages() if stage.state == "queued" and stage.due}

    def queues(self, stage_run_ids: Iterable[int]) -> set[str]:
        return {self.model.find(stage_run_id)[1].queue for stage_run_id in stage_run_ids}


@pytest.mark.parametrize("histories", [12, pytest.param(30, marks=pytest.mark.long)])
def test_histories_follow_the_model(database: Database, tmp_path: Path, histories: int) -> None:
    store = open_store(Settings(data_dir=tmp_path, storage_sync=False))
    machine: Callable[[], JobsMachine] = type("Machine", (JobsMachine,), {"database": database, "store": store})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=histories,
            stateful_step_count=50,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
