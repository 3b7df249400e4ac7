"""Histories of jobs: after every step the database must show what the model says."""

from collections.abc import Callable, Collection, Iterable, Sequence

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.jobs import Claims, Completion, Jobs, NewJob, Outcome
from omni_jobs.maintenance.pruner import Pruner
from omni_jobs.settings import Settings
from omni_jobs.storage import ObjectRef, ObjectStore, payload_key
from tests.integration.job_steps import failures
from tests.integration.jobs.jobs_model import ACTIVE, BESIDE_JOBS, FINAL, OF_JOBS, WEIGHTS, Job, Model, Stage


class JobsHistory(RuleBasedStateMachine):
    """One history: what must hold after every step of it, and what its rules ask."""

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

    # What is claimed and reported.

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
