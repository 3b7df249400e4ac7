"""The executor: each end that a stage run can come to, and the reports that its ledger gets."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_jobs.errors import EngineDead, Fenced, ModelError, OmniJobsError, OutOfMemory, StageError
from omni_jobs.jobs import Claim, Completion, Failure, NewWorker, Outcome, ProgressReport
from omni_jobs.pipelines.loader import load_pipeline
from omni_jobs.settings import Settings
from omni_jobs.storage.local import LocalObjectStore
from workers.execution.executor import Executor
from workers.execution.stage_llm import StageLLM
from workers.runners.runner import ProgressSink
from workers.stages.stage import Stage
from workers.stages.types import EnginePrompt, OmniModelRunnerOutput, Progress

PIPELINE = load_pipeline(Path(__file__).parents[3] / "stage_configs" / "echo.yaml")
OUTPUT = OmniModelRunnerOutput(text="x", multimodal_outputs={"bytes": (np.arange(10_000) % 7).astype(np.uint8)})


class ScriptedRunner:
    """A runner whose runs do what the test says."""

    def __init__(self) -> None:
        self.healthy = True
        self.entered = asyncio.Semaphore(0)
        self.act: Callable[[], Awaitable[OmniModelRunnerOutput]] = give_output

    async def start(self) -> None:
        """Nothing to load."""

    async def run(self, prompt: EnginePrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        progress(Progress(1, 2, "steps"))
        self.entered.release()
        return await self.act()

    async def close(self) -> None:
        """Nothing to free."""


class RecordingLedger:
    """A ledger without a database: it grants the claims of ``claims`` and records every report."""

    worker = NewWorker("worker-1", "slot", "echo", "first", "host", 1, 8, "1", "")

    def __init__(self) -> None:
        self.claims: dict[tuple[int, int], Claim] = {}
        self.reports: list[tuple[Any, ...]] = []
        self.progress: list[ProgressReport] = []
        self.wins = True
        self.fenced = False
        self.refuses: set[str] = set()

    def _answer(self, name: str, *report: Any) -> None:
        if self.fenced:
            raise Fenced("worker-1")
        if name in self.refuses:
            raise StageError("the database refused it")
        self.reports.append((name, *report))

    async def claim(self, hints: Sequence[tuple[int, int]]) -> list[Claim]:
        if "claim" in self.refuses:
            raise StageError("the database refused it")
        return [self.claims[hint] for hint in hints if hint in self.claims]

    async def complete(self, completion: Completion) -> Outcome:
        self._answer("complete", completion.stage_run_id, completion.attempt)
        return Outcome(won=self.wins)

    async def fail(self, failure: Failure) -> Outcome:
        self._answer("fail", failure.stage_run_id, failure.attempt, failure.error.code)
        return Outcome(won=True)

    async def release(self, stage_run_id: int, attempt: int) -> None:
        self._answer("release", stage_run_id, attempt)

    def report_progress(self, report: ProgressReport) -> None:
        self.progress.append(report)

    def forget_progress(self, stage_run_id: int) -> None:
        """Nothing is kept."""


class Bench:
    """An executor of the echo pipeline's first stage; ``run`` offers it one stage run and waits for its end."""

    def __init__(self, directory: Path, *, slots: int = 8, time_limit_s: float = 60.0) -> None:
        config = PIPELINE.stage("first").model_copy(update={"time_limit_s": time_limit_s})
        self.runner = ScriptedRunner()
        self.ledger = RecordingLedger()
        self.store = LocalObjectStore(directory, sync=False)
        self.broken: list[str] = []
        self.executor = Executor(
            StageLLM(Stage(PIPELINE, config, None), self.runner),
            self.ledger,  # type: ignore[arg-type]
            self.store,
            Settings(data_dir=directory).model_copy(update={"stop_limit_s": 0.1}),
            slots=slots,
            on_room=lambda: None,
            on_broken=self.broken.append,
        )

    def grant(self, stage_run_id: int = 1, **changes: Any) -> tuple[int, int]:
        """Let the ledger grant a claim; return its hint."""
        fields: dict[str, Any] = {
            "stage_run_id": stage_run_id,
            "job_id": f"job-{stage_run_id}",
            "stage": "first",
            "attempt": 3,
            "pipeline": "echo",
            "request": {"messages": [{"role": "user", "content": "Hello"}]},
            "media": (),
            "seed": 1,
            "upstream": {},
            "has_successors": True,
            "failures": {},
            "alone": False,
        }
        claim = Claim(**{**fields, **changes})
        self.ledger.claims[claim.hint] = claim
        return claim.hint

    async def ended(self, count: int = 1) -> None:
        async with asyncio.timeout(20):
            while self.executor.ended < count or self.executor.hints_in_hand:
                await asyncio.sleep(0.005)

    async def run(self, **changes: Any) -> list[tuple[Any, ...]]:
        """Run one stage run to its end; return the reports."""
        self.executor.offer([self.grant(**changes)])
        await self.ended()
        return self.ledger.reports

    async def entered(self, count: int = 1) -> None:
        async with asyncio.timeout(20):
            for _ in range(count):
                await self.runner.entered.acquire()


async def give_output() -> OmniModelRunnerOutput:
    return OUTPUT


async def take_for_ever() -> OmniModelRunnerOutput:
    await asyncio.sleep(3600)
    return OUTPUT


def raising(error: Exception) -> Callable[[], Awaitable[OmniModelRunnerOutput]]:
    async def act() -> OmniModelRunnerOutput:
        raise error

    return act


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_a_stage_run_is_claimed_loaded_run_stored_and_completed(bench: Bench) -> None:
    assert await bench.run() == [("complete", 1, 3)]
    assert [stored.key for stored in bench.store.list()], "a payload of 80 kB does not stand in SQL"
    assert [(report.attempt, report.done) for report in bench.ledger.progress] == [(3, 1)]
    assert (bench.executor.in_flight, bench.executor.room) == (0, 8)
    assert bench.broken == []


@pytest.mark.parametrize(
    ("error", "code", "breaks"),
    [
        (ModelError("no"), "model_error", False),
        (OutOfMemory(), "out_of_memory", False),
        (MemoryError(), "out_of_memory", False),
        (ZeroDivisionError("in the model's code"), "model_error", False),
        (EngineDead(), "engine_dead", True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_an_error_is_recorded_and_a_dead_engine_ends_the_worker(
    bench: Bench, error: Exception, code: str, breaks: bool
) -> None:
    bench.runner.act = raising(error)
    assert await bench.run() == [("fail", 1, 3, code)]
    assert bool(bench.broken) is breaks
    assert (bench.executor.room == 0) is breaks
    if isinstance(error, OmniJobsError):
        assert error.stage == "first"


@pytest.mark.parametrize(("healthy", "code"), [(True, "time_limit"), (False, "engine_dead")])
async def test_a_stage_run_over_its_time_limit_fails(tmp_path: Path, healthy: bool, code: str) -> None:
    bench = Bench(tmp_path, time_limit_s=0.05)
    bench.runner.act, bench.runner.healthy = take_for_ever, healthy
    assert await bench.run() == [("fail", 1, 3, code)]


@pytest.mark.parametrize(
    ("healthy", "report"), [(True, ("release", 1, 3)), (False, ("fail", 1, 3, "engine_dead"))], ids=["alive", "dead"]
)
async def test_a_stage_run_whose_job_is_to_stop_is_handed_back_by_a_healthy_engine(
    bench: Bench, healthy: bool, report: tuple[Any, ...]
) -> None:
    bench.runner.act = take_for_ever
    bench.executor.offer([bench.grant()])
    await bench.entered()
    bench.runner.healthy = healthy
    bench.executor.stop_runs([1, 2])
    await bench.ended()
    assert bench.ledger.reports == [report]


@pytest.mark.parametrize("over_time", [True, False], ids=["over its time", "told to stop"])
async def test_a_stage_run_that_does_not_stop_ends_the_worker(tmp_path: Path, over_time: bool) -> None:
    bench = Bench(tmp_path, time_limit_s=0.05 if over_time else 60)
    stop = asyncio.Event()

    async def ignore_cancelling() -> OmniModelRunnerOutput:
        while not stop.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        return OUTPUT

    bench.runner.act = ignore_cancelling
    bench.executor.offer([bench.grant()])
    await bench.entered()
    if not over_time:
        bench.executor.stop_runs([1])
    async with asyncio.timeout(20):
        while not bench.broken:
            await asyncio.sleep(0.01)
    assert bench.broken == ["stage run 1 does not stop"]
    stop.set()
    await bench.ended()


async def test_a_fenced_worker_writes_nothing(bench: Bench) -> None:
    bench.runner.act = take_for_ever
    bench.executor.offer([bench.grant(), bench.grant(2)])
    await bench.entered(2)
    bench.ledger.fenced = True
    bench.executor.abandon()
    await bench.ended(2)
    assert bench.ledger.reports == []
    assert bench.executor.room == 0


async def test_a_drained_worker_hands_back_the_rest(bench: Bench) -> None:
    bench.runner.act = take_for_ever
    bench.executor.offer([bench.grant(), bench.grant(2)])
    await bench.entered(2)
    await bench.executor.drain(0.0, asyncio.Event())
    assert sorted(bench.ledger.reports) == [("release", 1, 3), ("release", 2, 3)]
    bench.executor.offer([bench.grant(3)])
    await asyncio.sleep(0.01)
    assert (bench.executor.hints_in_hand, bench.executor.in_flight) == (0, 0)


async def test_a_stage_run_of_another_stage_is_handed_back(bench: Bench) -> None:
    assert await bench.run(stage="second") == [("release", 1, 3)]


async def test_a_stale_hint_is_dropped(bench: Bench) -> None:
    bench.executor.offer([(1, 0)])
    await bench.ended(0)
    assert bench.ledger.reports == []
    assert bench.executor.room == 8


async def test_a_claim_that_the_database_refuses_is_handed_back_because_it_may_have_been_granted(bench: Bench) -> None:
    bench.ledger.refuses = {"claim"}
    bench.executor.offer([(1, 2)])
    await bench.ended(0)
    assert bench.ledger.reports == [("release", 1, 3)]


async def test_a_completion_that_lost_leaves_no_objects(bench: Bench) -> None:
    bench.ledger.wins = False
    assert await bench.run() == [("complete", 1, 3)]
    assert list(bench.store.list()) == []


@pytest.mark.parametrize(
    ("refuses", "reports", "breaks"),
    [
        ({"complete"}, [("fail", 1, 3, "stage_failed")], False),
        ({"complete", "fail"}, [], True),  # else it would stay this worker's
    ],
)
async def test_an_end_that_the_database_refuses(
    bench: Bench, refuses: set[str], reports: list[tuple[Any, ...]], breaks: bool
) -> None:
    bench.ledger.refuses = refuses
    assert await bench.run() == reports
    assert bool(bench.broken) is breaks


async def test_a_suspect_with_company_is_handed_back_and_runs_alone_afterwards(bench: Bench) -> None:
    finish = asyncio.Event()

    async def wait() -> OmniModelRunnerOutput:
        await finish.wait()
        return OUTPUT

    bench.runner.act = wait
    bench.executor.offer([bench.grant(1)])
    await bench.entered()
    bench.grant(2, alone=True, attempt=4)  # the hint of its next attempt
    bench.executor.offer([bench.grant(2, alone=True)])
    async with asyncio.timeout(20):
        while not bench.ledger.reports:
            await asyncio.sleep(0.005)
    assert bench.ledger.reports == [("release", 2, 3)]
    assert bench.executor.room == 0, "nothing is claimed beside a suspect"
    finish.set()
    await bench.ended(2)
    assert bench.ledger.reports[1:] == [("complete", 1, 3), ("complete", 2, 4)]
    assert bench.executor.room == 8
