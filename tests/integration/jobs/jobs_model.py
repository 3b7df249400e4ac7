"""A plain model of the transitions: no SQL, no locks, no batches.

A job is a dictionary of stages, a transition a few assignments, a claim the first of a sorted list.
"""

from dataclasses import dataclass, field

from omni_jobs.errors import Fenced, OmniJobsError, WorkerLost
from omni_jobs.jobs import Retention, StoredSnapshot
from omni_jobs.retry import RetryLimits, is_last_chance

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
