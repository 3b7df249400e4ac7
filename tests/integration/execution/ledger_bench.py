"""A worker's ledger on a real database that sometimes does not answer, and jobs to claim through it."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import uuid4

from omni_jobs.database.database import Database
from omni_jobs.errors import DatabaseUnavailable, Fenced, SlotTaken
from omni_jobs.identity import PipelineId, StageId
from omni_jobs.jobs import (
    Claim,
    Claims,
    Completion,
    Jobs,
    NewJob,
    NewStage,
    NewWorker,
    Outcome,
    ProgressReport,
    Release,
    Renewal,
    Report,
    TextPiece,
    Wishes,
    new_job_id,
)
from omni_jobs.settings import Settings
from tests.integration.job_steps import submit_one
from workers.execution.ledger import Ledger
from workers.execution.observers.ledger_observer import LedgerObserver


class FlakyJobs(Jobs):
    """Real jobs; loses the next ``outages`` calls, every other time after the commit."""

    outages = 0
    transactions = 0
    refuses: int | None = None  # a stage run whose completion breaks the transaction
    shared = 0  # transactions of what ended and what came in its place
    bug: str | None = None  # the method that meets one
    away = False  # the database, for renewals, claims and ends

    def __init__(self, db: Database) -> None:
        super().__init__(db)
        self.counts: list[Mapping[str, Any] | None] = []  # that renewals brought

    def _pass(self) -> None:
        self.transactions += 1
        if self.outages:
            self.outages -= 1
            raise DatabaseUnavailable

    def _reach(self) -> None:
        if self.away:
            raise DatabaseUnavailable

    def renew(
        self, worker_id: str, lease_s: float, run_s: float | None = None, stats: Mapping[str, Any] | None = None
    ) -> Renewal:
        if self.bug == "renew":
            raise RuntimeError("a bug")
        self._reach()
        renewal = super().renew(worker_id, lease_s, run_s, stats)
        self.counts.append(stats)
        return renewal

    def report_progress(self, reports: Sequence[ProgressReport], pieces: Sequence[TextPiece] = ()) -> None:
        if self.bug == "report_progress":
            raise RuntimeError("a bug")
        super().report_progress(reports, pieces)

    def wishes(self, worker_id: str) -> Wishes:
        if self.bug == "wishes":
            raise RuntimeError("a bug")
        return super().wishes(worker_id)

    def claim(self, worker_id: str, at_most: int, *, reports: Sequence[Report] = (), **options: Any) -> Claims:
        self._check(reports)
        self._reach()
        self.shared += bool(reports)
        if self.outages % 2:
            self._pass()
        found = super().claim(worker_id, at_most, reports=reports, **options)
        self._pass()
        return found

    def report(self, reports: Sequence[Report]) -> Sequence[Outcome]:
        self._check(reports)
        found = super().report(reports)
        self._pass()
        return found

    def _check(self, reports: Sequence[Report]) -> None:
        if any(isinstance(each, Completion) and each.stage_run_id == self.refuses for each in reports):
            raise ValueError("not for this database")


class Heard(LedgerObserver):
    """Notes what it is told, and fails then."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.renewals = 0

    def claimed(self, claims: Sequence[Claim]) -> None:
        self._note("claimed", [claim.stage_run_id for claim in claims])

    def renewed(self) -> None:
        self.renewals += 1

    def ended(self, reports: Sequence[Report], outcomes: Sequence[Outcome]) -> None:
        self._note("ended", [report.stage_run_id for report in reports], [outcome.won for outcome in outcomes])

    def _note(self, *told: Any) -> None:
        self.told.append(told)
        raise RuntimeError("a bug of an observer")


class Doorbells:
    """Stands where the relay to the broker is."""

    breaks = False  # the next time

    def __init__(self) -> None:
        self.rung: list[str] = []

    def ring(self, queues: Collection[str]) -> None:
        if self.breaks:
            self.breaks = False
            raise RuntimeError("a bug of the relay")
        self.rung += queues


class Bench:
    """A ledger, and jobs of one stage to claim through it."""

    def __init__(self, database: Database, settings: Settings | None = None, worker: NewWorker | None = None) -> None:
        self.database = database
        self.jobs = FlakyJobs(database)
        self.doorbells = Doorbells()
        self.heard = Heard()
        self.fenced: list[Fenced] = []
        self.unwanted: list[int] = []
        self.pauses: list[bool] = []
        self.stats: Mapping[str, Any] | None = None  # what the worker has counted
        self.worker = worker or NewWorker(
            f"worker-{uuid4().hex}", "slot", StageId(PipelineId("echo", "d"), "first"), "host", 1, 8, "1"
        )
        self.ledger = Ledger(
            self.jobs,
            self.worker,
            self.doorbells,  # type: ignore[arg-type]
            settings or Settings(heartbeat_s=0.1, lease_s=5),
            keep_trying=lambda: False,
            on_cancel=self.unwanted.extend,
            on_pause=self.pauses.append,
            on_fenced=self.fenced.append,
            observers=[self.heard],
            stats=lambda: self.stats,
        )

    async def start(self) -> None:
        await asyncio.to_thread(self.ledger.take_slot, asyncio.get_running_loop())
        await asyncio.to_thread(self.ledger.serve)

    def submit(self, count: int = 1) -> list[str]:
        """Submit jobs, and return their ids."""
        ids = [new_job_id() for _ in range(count)]
        for job_id in ids:
            submit_one(
                self.jobs,
                NewJob(
                    job_id=job_id,
                    pipeline=PipelineId("echo", "d"),
                    pipeline_version="1",
                    request={},
                    modalities=["text"],
                    stages=[NewStage(name="first", inputs=(), queue="echo.first")],
                    seed=0,
                    request_digest="r",
                ),
            )
        return ids

    async def claim(self, at_most: int = 8, *, is_idle: bool = True) -> list[Claim]:
        return list((await self.ledger.claim(at_most, is_idle=is_idle)).claims)

    async def claim_new(self, count: int = 1) -> list[Claim]:
        """Submit jobs and claim them."""
        self.submit(count)
        return await self.claim(count)

    async def hand_back(self, claim: Claim) -> Outcome:
        return await self.ledger.report(Release(claim.stage_run_id, claim.attempt, self.worker.worker_id))

    def done(self, claim: Claim) -> Completion:
        return Completion(claim.stage_run_id, claim.attempt, self.worker.worker_id, result={"text": "x"})


async def until(condition: object, within_s: float = 30.0) -> None:
    assert callable(condition)
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.02)


class Silent(Bench):
    """Holds its slot for a minute and renews nothing: what a killed worker leaves, or one that is stopped."""

    def hold(self) -> list[Claim]:
        self.jobs.register_worker(self.worker, 60.0)
        self.submit()
        return list(self.jobs.claim(self.worker.worker_id, 8).claims)


def take_slot(other: Silent) -> None:
    """Register this worker in place of the one that lives in its slot, which may renew its lease at any moment."""
    while True:
        try:
            other.jobs.register_worker(other.worker, 60.0, instead_of=other.jobs.slot_holder("slot"))
        except SlotTaken:
            continue
        return
