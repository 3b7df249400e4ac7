"""An executor whose runner does what the test says, and whose ledger has no database."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from omni_jobs.errors import Fenced, OmniJobsError, StageError
from omni_jobs.identity import PipelineId, StageId
from omni_jobs.jobs import (
    Claim,
    Claims,
    Completion,
    Failure,
    NewWorker,
    Outcome,
    ProgressReport,
    Release,
    Report,
    StepSeconds,
)
from omni_jobs.observers import Observers
from omni_jobs.pipelines.loader import load_pipeline
from omni_jobs.priority import Priority
from omni_jobs.settings import Settings
from omni_jobs.storage.local import LocalObjectStore
from workers.execution.executor import Executor
from workers.execution.observers.progress import ProgressReports
from workers.execution.observers.run_observer import RunObserver, RunResult, StepTimes
from workers.execution.slots import Slots
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
        self.progress: ProgressSink | None = None  # of the last run

    async def start(self) -> None:
        """Nothing to load."""

    async def run(self, prompt: EnginePrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        self.progress = progress
        progress(Progress(1, 2, "steps"))
        self.entered.release()
        return await self.act()

    async def close(self) -> None:
        """Nothing to free."""


def as_told(report: Report) -> tuple[Any, ...]:
    names: dict[type, str] = {Completion: "complete", Failure: "fail", Release: "release"}
    told = (names[type(report)], report.stage_run_id, report.attempt)
    return (*told, report.error.code) if isinstance(report, Failure) else told


class RecordingLedger:
    """A ledger without a database: it grants what is ``waiting`` as SQL would, and records every claim and report."""

    worker = NewWorker("worker-1", "slot", StageId(PipelineId("echo", ""), "first"), "host", 1, 8, "1")

    def __init__(self) -> None:
        self.waiting: list[Claim] = []
        self.asked: list[tuple[int, bool]] = []  # at_most, is_idle
        self.asked_of_high: list[int] = []
        self.answers = asyncio.Event()  # to claims
        self.answers.set()
        self.reports: list[tuple[Any, ...]] = []
        self.failures: list[OmniJobsError] = []
        self.device_s: list[float] = []  # of the reports
        self.steps: list[StepSeconds | None] = []  # of the reports
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

    async def claim(self, at_most: int, *, of_high: int, is_idle: bool) -> Claims:
        self.asked.append((at_most, is_idle))
        self.asked_of_high.append(of_high)
        await self.answers.wait()
        if "lease" in self.refuses:
            raise Fenced("worker-1")
        if "claim" in self.refuses:
            raise StageError("the database refused it")
        suspects = [claim for claim in self.waiting if claim.alone]
        if suspects and not is_idle:
            return Claims((), suspect_waits=True)
        granted = suspects[:1] or self.waiting[:at_most]
        more = bool(suspects) or len(granted) == at_most > 0
        further = [] if suspects else [claim for claim in self.waiting[at_most:] if claim.is_high][:of_high]
        self.waiting = [claim for claim in self.waiting if claim not in granted and claim not in further]
        return Claims([*granted, *further], more, more_high=bool(suspects) or len(further) == of_high > 0)

    async def report(self, report: Report) -> Outcome:
        self._answer(*as_told(report))
        self.device_s.append(report.device_s)
        self.steps.append(report.steps)
        if isinstance(report, Failure):
            self.failures.append(report.error)
        return Outcome(won=self.wins or not isinstance(report, Completion))

    def give_up(self, reports: Sequence[Report]) -> Sequence[asyncio.Future[Outcome]]:
        self.reports += [as_told(report) for report in reports]
        self.device_s += [report.device_s for report in reports]
        self.steps += [report.steps for report in reports]
        try:
            answers = [asyncio.get_running_loop().create_future() for _ in reports]
        except RuntimeError:  # of another thread, which waits for no answer
            return ()
        for answer, report in zip(answers, reports, strict=True):
            answer.set_result(Outcome(won=self.wins or isinstance(report, Release)))
        return () if self.fenced else answers

    def report_progress(self, report: ProgressReport) -> None:
        self.progress.append(report)

    def finish_text(self, stage_run_id: int) -> None:
        pass

    def forget_progress(self, stage_run_id: int) -> None:
        """Nothing is kept."""


class Heard(RunObserver):
    """Notes the steps of each stage run, and checks that the times of those before are there and rise."""

    def __init__(self) -> None:
        self.steps: dict[int, list[str]] = {}
        self.results: dict[int, RunResult] = {}
        self.completions: list[Completion] = []

    def _note(self, step: str, claim: Claim, times: StepTimes) -> None:
        self.steps.setdefault(claim.stage_run_id, []).append(step)
        passed = [times.loaded_s, times.ran_s, times.stored_s, times.ended_s]
        known = [at for at in passed if at is not None]
        assert [0.0, *known] == sorted([0.0, *known])
        assert abs(times.claimed_at - time.time()) < 3600

    def claimed(self, claim: Claim, times: StepTimes) -> None:
        self._note("claimed", claim, times)

    def loaded(self, claim: Claim, times: StepTimes) -> None:
        assert times.loaded_s is not None
        self._note("loaded", claim, times)

    def progressed(self, claim: Claim, times: StepTimes, progress: Progress) -> None:
        self._note("progressed", claim, times)

    def ran(self, claim: Claim, times: StepTimes) -> None:
        assert times.ran_s is not None
        self._note("ran", claim, times)

    def stored(self, claim: Claim, times: StepTimes, completion: Completion) -> None:
        assert times.stored_s is not None
        assert completion.payload is not None
        self.completions.append(completion)
        self._note("stored", claim, times)

    def ended(self, claim: Claim, times: StepTimes, result: RunResult) -> None:
        assert times.ended_s is not None
        self._note("ended", claim, times)
        self.results[claim.stage_run_id] = result


class Deaf(RunObserver):
    """Fails at whatever it is told."""

    def fail(self, *told: object) -> None:
        raise ValueError(told)

    claimed = loaded = progressed = ran = stored = ended = fail


class Bench:
    """An executor of the echo pipeline's first stage; ``run`` lets it claim one stage run and waits for its end."""

    def __init__(
        self,
        directory: Path,
        *,
        slots: int = 8,
        kept: int = 0,
        time_limit_s: float = 60.0,
        poll_s: float = 60.0,
        engine_stall_s: float = 60.0,
    ) -> None:
        config = PIPELINE.stage("first").model_copy(update={"time_limit_s": time_limit_s})
        self.runner = ScriptedRunner()
        self.ledger = RecordingLedger()
        self.store = LocalObjectStore(directory, sync=False)
        self.heard = Heard()
        self.broken: list[str] = []
        self.passed_on: list[Priority] = []  # doorbells, to other workers
        self.llm = StageLLM(Stage(PIPELINE, config, None), self.runner)
        self.executor = Executor(
            self.llm,
            self.ledger,  # type: ignore[arg-type]
            self.store,
            Settings(data_dir=directory).model_copy(
                update={"stop_limit_s": 0.1, "poll_s": poll_s, "engine_stall_s": engine_stall_s}
            ),
            slots=Slots(slots, kept),
            observers=Observers([ProgressReports(self.ledger), Deaf(), self.heard]),  # type: ignore[arg-type]
            on_room=lambda: None,
            on_more=self.passed_on.append,
            on_broken=self.broken.append,
        )

    def queue(self, stage_run_id: int = 1, **changes: Any) -> None:
        """Let a stage run wait to be claimed, without a doorbell."""
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
            "alone": False,
        }
        self.ledger.waiting.append(Claim(**{**fields, **changes}))

    def offer(self, stage_run_id: int = 1, **changes: Any) -> None:
        """Let a stage run wait to be claimed, and ring."""
        self.queue(stage_run_id, **changes)
        self.executor.ring()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.005)

    async def ended(self, count: int = 1) -> None:
        await self.until(lambda: self.executor.ended >= count and not self.executor.in_flight)
        await settled()

    async def run(self, **changes: Any) -> list[tuple[Any, ...]]:
        """Run one stage run to its end; return the reports."""
        self.offer(**changes)
        await self.ended()
        return self.ledger.reports

    async def entered(self, count: int = 1) -> None:
        async with asyncio.timeout(20):
            for _ in range(count):
                await self.runner.entered.acquire()


async def settled() -> None:
    """Let the event loop do all that is ready: claims, which this ledger answers at once, among them."""
    for _ in range(20):
        await asyncio.sleep(0)


async def give_output() -> OmniModelRunnerOutput:
    return OUTPUT


async def take_for_ever() -> OmniModelRunnerOutput:
    await asyncio.sleep(3600)
    return OUTPUT


def raising(error: Exception) -> Callable[[], Awaitable[OmniModelRunnerOutput]]:
    async def act() -> OmniModelRunnerOutput:
        raise error

    return act
