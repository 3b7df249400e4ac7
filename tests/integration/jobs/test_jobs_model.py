"""Random histories of the transitions against a plain model of them, on both databases.

The rules are here, the model in jobs_model, and what must hold after every step in jobs_history.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.errors import Conflict, Fenced, ModelError, NotFound, OmniJobsError, OutOfMemory, SlotTaken
from omni_jobs.identity import PipelineId, StageId
from omni_jobs.jobs import (
    Claims,
    Failure,
    NewJob,
    NewSnapshot,
    NewStage,
    NewWorker,
    Release,
    StoredSnapshot,
    new_job_id,
)
from omni_jobs.new_job import Reuse
from omni_jobs.priority import Priority
from omni_jobs.settings import Settings
from omni_jobs.storage import ObjectRef, job_prefix, open_store
from tests.integration.job_steps import fail, release, submit_one
from tests.integration.jobs.jobs_history import JobsHistory
from tests.integration.jobs.jobs_model import (
    ACTIVE,
    DIGESTS,
    FINAL,
    GRAPHS,
    KEEP_NOTHING,
    LEASE_S,
    LIMITS,
    LONG_S,
    SLOTS,
    WEIGHTS,
    Job,
    Stage,
)


class JobsMachine(JobsHistory):
    """What happens in a history."""

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
