"""The executor: when it claims, each end that a stage run can come to, and the reports that its ledger gets."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_jobs.errors import EngineDead, Fenced, ModelError, OmniJobsError, OutOfMemory, StageError
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
    StoredSnapshot,
    values,
)
from omni_jobs.observers import Observers
from omni_jobs.pipelines.loader import load_pipeline
from omni_jobs.priority import Priority
from omni_jobs.settings import Settings
from omni_jobs.storage import ObjectRef, snapshot_key
from omni_jobs.storage.local import LocalObjectStore
from workers.execution.device_time import DeviceTime
from workers.execution.executor import Executor
from workers.execution.observers.progress import ProgressReports
from workers.execution.observers.run_observer import RunObserver, RunResult, StepTimes
from workers.execution.slots import Slots
from workers.execution.stage_llm import StageLLM
from workers.runners.runner import ProgressSink
from workers.stages.stage import Stage
from workers.stages.types import WAITING, Artifact, EnginePrompt, OmniModelRunnerOutput, Progress

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
        if isinstance(report, Failure):
            self.failures.append(report.error)
        return Outcome(won=self.wins or not isinstance(report, Completion))

    def give_up(self, reports: Sequence[Report]) -> Sequence[asyncio.Future[Outcome]]:
        self.reports += [as_told(report) for report in reports]
        self.device_s += [report.device_s for report in reports]
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


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    """An executor that has found nothing at its start."""
    bench = Bench(tmp_path)
    await settled()
    bench.ledger.asked.clear()
    return bench


async def test_a_stage_run_is_claimed_loaded_run_stored_and_completed(bench: Bench) -> None:
    assert await bench.run() == [("complete", 1, 3)]
    assert [stored.key for stored in bench.store.list()], "a payload of 80 kB does not stand in SQL"
    assert [(report.attempt, report.done) for report in bench.ledger.progress] == [(3, 1)]
    assert (bench.executor.in_flight, bench.executor.slots.for_any) == (0, 8)
    assert bench.broken == []


async def test_every_end_says_what_was_had_of_the_devices(bench: Bench) -> None:
    """Also one that is stopped, and one that is given up within the engine."""
    now = itertools.count(100.0)  # a second goes by with each look at the clock
    bench.llm.device_time = DeviceTime(2, lambda: next(now))
    await bench.run(stage_run_id=1)
    bench.runner.act = raising(ModelError("no"))
    await bench.run(stage_run_id=2)
    bench.runner.act = take_for_ever
    bench.offer(3)
    await bench.until(lambda: bench.llm.device_time.of(3))
    bench.executor.stop_runs([3])
    await bench.ended(3)
    bench.offer(4)
    await bench.until(lambda: bench.llm.device_time.of(4))
    bench.executor.give_up("it stands still", None)
    ends = [report[:2] for report in bench.ledger.reports]
    assert ends == [("complete", 1), ("fail", 2), ("release", 3), ("fail", 4)]
    assert all(seconds > 0 for seconds in bench.ledger.device_s)
    assert [bench.llm.device_time.of(each) for each in (1, 2, 3)] == [0, 0, 0]


async def test_a_stage_without_a_model_has_no_device(bench: Bench) -> None:
    await bench.run()
    assert bench.ledger.device_s == [0]


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
    assert (bench.executor.slots.for_any == 0) is breaks
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
    bench.offer()
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
    bench.offer()
    await bench.entered()
    if not over_time:
        bench.executor.stop_runs([1])
    await bench.until(lambda: bench.broken)
    assert bench.broken == ["stage run 1 has not stopped within 0.1 s, OMNI_JOBS_STOP_LIMIT_S"]
    stop.set()
    await bench.ended()


async def test_an_engine_that_cannot_tell_what_it_computes_and_gets_on_with_nothing_ends_the_worker(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, engine_stall_s=0.2)
    bench.runner.act = take_for_ever
    bench.offer(1)
    bench.offer(2)
    await bench.until(lambda: bench.broken)
    assert bench.broken[0].endswith("for 0.2 s, OMNI_JOBS_ENGINE_STALL_S")
    assert sorted(bench.ledger.reports) == [("fail", 1, 3, "engine_dead"), ("fail", 2, 3, "engine_dead")]
    bench.executor.stop_runs([1, 2])


async def test_rows_that_wait_for_room_are_no_sign_that_their_engine_hangs(tmp_path: Path) -> None:
    bench = Bench(tmp_path, engine_stall_s=0.05)
    stop = asyncio.Event()
    run = bench.runner.run

    async def wait_for_room(prompt: EnginePrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        progress(Progress(0, None, WAITING))
        await stop.wait()
        return await run(prompt, progress)

    bench.runner.run = wait_for_room  # type: ignore[method-assign]
    bench.offer()
    await asyncio.sleep(0.3)  # six times the limit
    stop.set()
    await bench.ended()
    assert (bench.broken, bench.ledger.reports) == ([], [("complete", 1, 3)])


@pytest.mark.parametrize(
    ("task", "reports"),
    [
        ("stage run 2", [("fail", 2, 3, "engine_dead"), ("release", 1, 3)]),
        ("Task-7", [("fail", 1, 3, "engine_dead"), ("fail", 2, 3, "engine_dead")]),
        (None, [("fail", 1, 3, "engine_dead"), ("fail", 2, 3, "engine_dead")]),
    ],
    ids=["a stage run's", "another", "none"],
)
async def test_of_a_blocked_loop_the_stage_run_that_blocks_it_is_to_blame(
    bench: Bench, task: str | None, reports: list[tuple[Any, ...]]
) -> None:
    bench.runner.act = take_for_ever
    bench.offer(1)
    bench.offer(2)
    await bench.entered(2)
    await asyncio.to_thread(bench.executor.give_up, "the loop stands still", task)
    assert sorted(bench.ledger.reports) == sorted(reports)
    await bench.executor.drain(0.0, asyncio.Event())
    assert len(bench.ledger.reports) == 2, "what was reported once is reported no more"


async def test_a_fenced_worker_writes_nothing(bench: Bench) -> None:
    bench.runner.act = take_for_ever
    bench.offer(1)
    bench.offer(2)
    await bench.entered(2)
    bench.ledger.fenced = True
    bench.executor.abandon()
    await bench.ended(2)
    assert bench.ledger.reports == []
    assert bench.executor.slots.for_any == 0


async def test_a_drained_worker_hands_back_the_rest(bench: Bench) -> None:
    bench.runner.act = take_for_ever
    bench.offer(1)
    bench.offer(2)
    await bench.entered(2)
    await bench.executor.drain(0.0, asyncio.Event())
    assert sorted(bench.ledger.reports) == [("release", 1, 3), ("release", 2, 3)]
    claims = len(bench.ledger.asked)
    bench.offer(3)
    await settled()
    assert (len(bench.ledger.asked), bench.executor.in_flight, bench.executor.slots.for_any) == (claims, 0, 0)


async def test_a_stage_run_of_another_stage_is_handed_back(bench: Bench) -> None:
    assert await bench.run(stage="second") == [("release", 1, 3)]


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


# Claims.


class Held:
    """Runs that last until they are let go, and how many of them there were at once."""

    def __init__(self, bench: Bench) -> None:
        self.free = asyncio.Semaphore(0)
        self.now = self.most = 0
        bench.runner.act = self.act

    async def act(self) -> OmniModelRunnerOutput:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.free.acquire()
        finally:
            self.now -= 1
        return OUTPUT


async def test_it_claims_for_all_its_slots_when_it_starts(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.queue()
    await bench.ended()
    assert bench.ledger.asked == [(8, True)], "a slot that is freed claims nothing when nothing more may wait"


async def test_a_doorbell_without_work_costs_one_claim(bench: Bench) -> None:
    bench.executor.ring()
    await settled()
    assert bench.ledger.asked == [(8, True)]
    assert (bench.executor.slots.for_any, bench.passed_on) == (8, [])


async def test_doorbells_that_ring_during_a_claim_make_one_more(bench: Bench) -> None:
    bench.ledger.answers.clear()
    bench.executor.ring()
    await settled()
    assert bench.executor.slots.for_any == 0, "what the claim asks for is no room"
    for _ in range(5):
        bench.executor.ring()
    await settled()
    assert bench.ledger.asked == [(8, True)]
    bench.ledger.answers.set()
    await settled()
    assert bench.ledger.asked == [(8, True)] * 2


async def test_freed_slots_claim_while_more_may_wait_and_never_more_than_there_are(tmp_path: Path) -> None:
    bench = Bench(tmp_path, slots=2)
    held = Held(bench)
    for number in range(5):
        bench.queue(number)
    await bench.entered(2)
    await settled()
    assert bench.ledger.asked == [(2, True)]
    for number in range(5):
        held.free.release()
        await bench.until(lambda number=number: bench.executor.ended > number)  # type: ignore[misc]
    await bench.ended(5)
    assert held.most == 2
    assert {at_most for at_most, _ in bench.ledger.asked} == {1, 2}
    assert [report[:2] for report in bench.ledger.reports] == [("complete", number) for number in range(5)]


async def test_a_poll_finds_what_no_doorbell_has_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path, poll_s=0.02)
    await settled()
    assert bench.ledger.asked == [(8, True)]
    bench.queue()
    await bench.ended()
    assert bench.ledger.reports == [("complete", 1, 3)]
    bench.executor.abandon()
    claims = len(bench.ledger.asked)
    await asyncio.sleep(0.1)
    assert len(bench.ledger.asked) == claims, "a worker that takes no more polls no more"


async def test_a_worker_that_a_doorbell_has_filled_passes_it_on_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, slots=1)
    held = Held(bench)
    await settled()
    for number in range(3):
        bench.queue(number)
    bench.executor.ring()
    await bench.entered()
    assert len(bench.passed_on) == 1
    held.free.release()
    await bench.entered()
    assert len(bench.passed_on) == 1, "that slot was freed here, and the others know"
    bench.executor.ring()
    held.free.release()
    await bench.entered()
    assert len(bench.passed_on) == 2
    held.free.release()
    await bench.ended(3)
    assert len(bench.passed_on) == 2


async def test_a_worker_with_room_left_passes_no_doorbell_on(bench: Bench) -> None:
    for number in range(7):
        bench.offer(number)
    await bench.ended(7)
    assert bench.passed_on == []


async def test_a_suspect_waits_until_nothing_runs_and_nothing_runs_beside_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, slots=4)
    held = Held(bench)
    bench.queue(1)
    bench.queue(2)
    await bench.entered(2)
    bench.queue(3)
    bench.offer(4, alone=True)
    await settled()
    assert bench.ledger.asked[1:] == [(2, False)]
    held.free.release()
    await bench.until(lambda: bench.executor.ended == 1)
    bench.executor.ring()
    await settled()
    assert bench.executor.slots.for_any == 0, "it drains for the suspect"
    assert len(bench.ledger.asked) == 2
    held.free.release()
    await bench.entered()
    bench.executor.ring()
    await settled()
    assert [claim.stage_run_id for claim, _ in bench.executor.claims_in_flight()] == [4]
    assert bench.ledger.asked[2:] == [(4, True)]
    assert bench.executor.slots.for_any == 0, "nothing is claimed beside a suspect"
    held.free.release()
    await bench.entered()
    assert [claim.stage_run_id for claim, _ in bench.executor.claims_in_flight()] == [3]
    held.free.release()
    await bench.ended(4)
    assert [report[1] for report in bench.ledger.reports] == [1, 2, 4, 3]
    assert bench.executor.slots.for_any == 4


async def test_a_paused_stage_claims_nothing_and_what_runs_goes_on(bench: Bench) -> None:
    held = Held(bench)
    bench.offer(1)
    await bench.entered()
    bench.executor.set_paused(True)
    claims = len(bench.ledger.asked)
    bench.offer(2)
    await settled()
    assert (len(bench.ledger.asked), bench.executor.in_flight, bench.executor.slots.for_any) == (claims, 1, 0)
    held.free.release()
    await bench.ended()
    assert bench.ledger.reports == [("complete", 1, 3)]
    assert len(bench.ledger.asked) == claims
    held.free.release()
    bench.executor.set_paused(False)  # no doorbell rings
    await bench.ended(2)
    assert bench.ledger.reports[-1] == ("complete", 2, 3)


async def test_an_executor_that_starts_paused_never_claims(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.executor.set_paused(True)  # before the loop turns
    await settled()
    assert bench.ledger.asked == []


async def test_kept_slots_are_for_high_jobs_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path, slots=3, kept=1)
    held = Held(bench)
    for number in range(4):
        bench.queue(number)
    await bench.entered(2)
    await settled()
    asked = list(zip(bench.ledger.asked, bench.ledger.asked_of_high, strict=True))
    assert asked == [((2, True), 1)], "the third slot is kept, and no high job waits"
    assert (bench.executor.slots.for_any, bench.executor.slots.for_high) == (0, 1)
    bench.executor.ring()
    await settled()
    assert len(bench.ledger.asked) == 1, "a doorbell of others says nothing of high jobs"
    bench.queue(7, is_high=True)
    bench.executor.ring(Priority.HIGH)
    await bench.entered()
    assert (bench.ledger.asked[1:], bench.ledger.asked_of_high[1:]) == ([(0, False)], [1])
    assert [claim.stage_run_id for claim, _ in bench.executor.claims_in_flight()] == [0, 1, 7]
    assert (bench.executor.slots.for_any, bench.executor.slots.for_high) == (0, 0)
    for _ in range(5):
        held.free.release()
    await bench.ended(5)
    assert held.most == 3
    assert sorted(report[1] for report in bench.ledger.reports) == [0, 1, 2, 3, 7]


async def test_high_jobs_may_take_all_slots_and_others_never_a_kept_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path, slots=3, kept=1)
    held = Held(bench)
    await settled()
    for number in range(4):
        bench.queue(number, is_high=True)
    bench.queue(4)
    bench.executor.ring(Priority.HIGH)
    await bench.entered(3)
    assert bench.passed_on == [Priority.HIGH], "one high job waits, for which no other worker has a doorbell"
    bench.executor.ring()
    for number in range(5):
        held.free.release()
        await bench.until(lambda number=number: bench.executor.ended > number)  # type: ignore[misc]
    await bench.ended(5)
    assert [report[1] for report in bench.ledger.reports] == [0, 1, 2, 3, 4]


async def test_a_poll_finds_high_jobs_while_others_hold_all_other_slots(tmp_path: Path) -> None:
    bench = Bench(tmp_path, slots=2, kept=1, poll_s=0.02)
    held = Held(bench)
    bench.queue(1)
    bench.queue(2)
    await bench.entered()
    bench.queue(3, is_high=True)
    await bench.entered()
    assert [claim.stage_run_id for claim, _ in bench.executor.claims_in_flight()] == [1, 3]
    for _ in range(3):
        held.free.release()
    await bench.ended(3)


async def test_a_suspect_of_a_high_job_waits_until_nothing_runs(tmp_path: Path) -> None:
    bench = Bench(tmp_path, slots=2, kept=1)
    held = Held(bench)
    bench.queue(1)
    await bench.entered()
    bench.queue(2, alone=True, is_high=True)
    bench.executor.ring(Priority.HIGH)
    await settled()
    assert (bench.executor.slots.for_any, bench.executor.slots.for_high, bench.executor.in_flight) == (0, 0, 1)
    held.free.release()
    await bench.entered()
    assert [claim.stage_run_id for claim, _ in bench.executor.claims_in_flight()] == [2]
    assert bench.executor.slots.for_high == 0, "nothing is claimed beside it"
    held.free.release()
    await bench.ended(2)
    assert (bench.executor.slots.for_any, bench.executor.slots.for_high) == (1, 2)


async def test_a_claim_that_the_database_refuses_costs_a_poll(bench: Bench) -> None:
    bench.ledger.refuses = {"claim"}
    bench.offer()
    await settled()
    assert (bench.ledger.asked, bench.executor.slots.for_any, bench.broken) == ([(8, True)], 8, [])
    bench.ledger.refuses = set()
    bench.executor.ring()  # as a poll does
    await bench.ended()
    assert bench.ledger.reports == [("complete", 1, 3)]


async def test_what_a_drain_finds_being_claimed_is_handed_back(bench: Bench) -> None:
    bench.ledger.answers.clear()
    bench.offer(1)
    bench.offer(2)
    await settled()
    draining = asyncio.create_task(bench.executor.drain(60.0, asyncio.Event()))
    await settled()
    bench.ledger.answers.set()
    await draining
    assert sorted(bench.ledger.reports) == [("release", 1, 3), ("release", 2, 3)]
    assert len(bench.ledger.asked) == 1


@pytest.mark.parametrize("is_granted", [True, False])
async def test_a_worker_fenced_during_a_claim_runs_and_reports_nothing(bench: Bench, is_granted: bool) -> None:
    bench.ledger.answers.clear()
    bench.offer()
    await settled()
    bench.ledger.fenced = True
    bench.ledger.refuses = set() if is_granted else {"lease"}
    bench.executor.abandon()
    bench.ledger.answers.set()
    await bench.ended(int(is_granted))
    assert (bench.ledger.reports, bench.ledger.progress) == ([], [])
    assert (len(bench.ledger.asked), bench.executor.slots.for_any) == (1, 0)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()])
async def test_what_a_models_code_must_not_raise_ends_its_stage_run_alone(bench: Bench, error: BaseException) -> None:
    async def escape() -> OmniModelRunnerOutput:
        raise error

    bench.runner.act = escape
    assert await bench.run() == [("fail", 1, 3, "model_error")]
    bench.runner.act = give_output
    bench.offer(2)
    await bench.ended(2)
    assert bench.ledger.reports[1:] == [("complete", 2, 3)]
    assert bench.broken == []


NAN = float("nan")
ARTIFACT = Artifact("first.srt", "application/x-subrip", b"1", "text")


@pytest.mark.parametrize(
    ("output", "field"),
    [
        (None, "output"),
        ({"text": "x"}, "output"),
        (b"sound", "output"),
        (OUTPUT._replace(multimodal_outputs=[1]), "multimodal_outputs"),
        (OUTPUT._replace(values=None), "values"),
        (OUTPUT._replace(result=[1]), "result"),
        (OUTPUT._replace(result={"mean": NAN}), "result"),
        (OUTPUT._replace(result={"mean": np.float32(1)}), "result"),
        (OUTPUT._replace(text=b"x"), "text"),
        (OUTPUT._replace(finish_reason="because"), "finish_reason"),
        (OUTPUT._replace(finish_reason={"stop": 1}), "finish_reason"),
        (OUTPUT._replace(usage={"prompt_tokens": 1.5}), "usage"),
        (OUTPUT._replace(usage=7), "usage"),
        (OUTPUT._replace(warnings="it is late"), "warnings"),
        (OUTPUT._replace(warnings=["it is late"]), "warnings.0"),
        (OUTPUT._replace(warnings=[{"message": "it is late"}]), "warnings.0"),
        (OUTPUT._replace(warnings=[{"code": "late", "message": NAN}]), "warnings.0"),
        (OUTPUT._replace(warnings=[{"code": "late", "message": "x" * 10_000}]), "warnings.0"),
        (OUTPUT._replace(warnings=[{"code": "late", "message": "x"}] * 1000), "warnings"),
        (OUTPUT._replace(artifacts=[b"1"]), "artifacts.0"),
        (OUTPUT._replace(artifacts=[ARTIFACT, ARTIFACT]), "artifacts.1.name"),
        (OUTPUT._replace(artifacts=[replace(ARTIFACT, name="second.srt")]), "artifacts.0.name"),
        (OUTPUT._replace(artifacts=[replace(ARTIFACT, name="../first.srt")]), "artifacts.0.name"),
        (OUTPUT._replace(artifacts=[replace(ARTIFACT, name="first./etc")]), "artifacts.0.name"),
        (OUTPUT._replace(artifacts=[replace(ARTIFACT, name="first.srt\n")]), "artifacts.0.name"),
        (OUTPUT._replace(artifacts=[replace(ARTIFACT, name=7)]), "artifacts.0.name"),
        (OUTPUT._replace(artifacts=[replace(ARTIFACT, media_type="a/b\r\nSet-Cookie: c=d")]), "artifacts.0.media_type"),
        (OUTPUT._replace(artifacts=[replace(ARTIFACT, data="1")]), "artifacts.0.data"),
    ],
)
async def test_an_output_that_is_none_fails_its_stage_run_alone(bench: Bench, output: Any, field: str) -> None:
    """In the ledger's transaction it would fail all that are written with it, and be run again for ever."""

    async def give() -> Any:
        return output

    bench.runner.act = give
    assert [report[0] for report in await bench.run()] == ["fail"]
    [failed] = bench.ledger.failures
    assert (failed.field, failed.retryable) == (field, False)
    bench.runner.act = give_output
    bench.offer(2)
    await bench.ended(2)
    assert bench.ledger.reports[1:] == [("complete", 2, 3)]
    assert bench.broken == []
    assert len(list(bench.store.list())) == 1, "of the one that failed nothing is left"


async def test_a_result_that_sql_cannot_keep_fails_its_stage_run_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "MOST_RESULT_BYTES", 1000)
    for number, (size, ended) in enumerate([(900, "complete"), (1100, "fail"), (900, "complete")], 1):

        async def give(size: int = size) -> OmniModelRunnerOutput:
            return OUTPUT._replace(result={"words": "x" * size})

        bench.runner.act = give
        bench.offer(number)
        await bench.ended(number)
        assert bench.ledger.reports[-1][0] == ended
    assert bench.ledger.failures[0].field == "result"
    assert bench.broken == []


@pytest.mark.parametrize(
    "report",
    [
        lambda: Progress(NAN, 2, "steps"),  # type: ignore[arg-type]
        lambda: Progress(np.int64(1), 2, "steps"),  # type: ignore[arg-type]
        lambda: Progress(1, "2", "steps"),  # type: ignore[arg-type]
        lambda: Progress(1, 2, None),  # type: ignore[arg-type]
        lambda: Progress(1, 2, "steps", b"text"),  # type: ignore[arg-type]
        lambda: "half",
    ],
)
async def test_progress_that_is_none_fails_its_stage_run_alone(bench: Bench, report: Callable[[], Any]) -> None:
    async def tell() -> OmniModelRunnerOutput:
        assert bench.runner.progress is not None
        bench.runner.progress(report())
        return OUTPUT

    bench.runner.act = tell
    assert [report[0] for report in await bench.run()] == ["fail"]
    assert bench.broken == []


async def test_neighbours_of_a_stage_run_that_hangs_are_handed_back(bench: Bench) -> None:
    stop = asyncio.Event()

    async def ignore_cancelling() -> OmniModelRunnerOutput:
        while not stop.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        return OUTPUT

    bench.runner.act = ignore_cancelling
    for stage_run_id in (1, 2, 3):
        bench.offer(stage_run_id)
    await bench.entered(3)
    bench.executor.stop_runs([2])
    try:
        await bench.until(lambda: bench.broken)
        assert sorted(bench.ledger.reports) == [("fail", 2, 3, "engine_dead"), ("release", 1, 3), ("release", 3, 3)]
        assert bench.executor.slots.for_any == 0
    finally:
        stop.set()
        await bench.ended(3)
    assert len(bench.ledger.reports) == 3, "what ends after it was given up is not recorded again"


# Observers.

ALL_STEPS = ["claimed", "loaded", "progressed", "ran", "stored", "ended"]


async def test_observers_hear_each_step_and_one_that_fails_harms_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1, 4):
        bench.offer(number)
    await bench.ended(3)
    assert bench.heard.steps == dict.fromkeys((1, 2, 3), ALL_STEPS)
    assert {result.kind for result in bench.heard.results.values()} == {"completed"}
    failed = [record.getMessage() for record in caplog.records if "observer" in record.getMessage()]
    assert sorted(failed) == sorted(f"the observer Deaf failed in {step}" for step in ALL_STEPS), "once for each kind"
    assert all(record.exc_info for record in caplog.records if "observer" in record.getMessage())


@pytest.mark.parametrize(
    ("error", "steps"), [(ModelError("no"), ["claimed", "loaded", "progressed", "ended"]), (None, ALL_STEPS)]
)
async def test_observers_hear_how_a_stage_run_ended(
    bench: Bench, error: OmniJobsError | None, steps: list[str]
) -> None:
    if error is not None:
        bench.runner.act = raising(error)
    else:
        bench.ledger.wins = False
    await bench.run()
    assert bench.heard.steps == {1: steps}
    assert bench.heard.results == {1: RunResult("lost" if error is None else "failed", error)}


async def test_observers_hear_of_the_completion_that_is_recorded(bench: Bench) -> None:
    gone = ObjectRef(key=snapshot_key("job-1", "first", 1, 1), size=1, digest="xxh3:" + "0" * 32)
    bench.offer(1, snapshot=StoredSnapshot(gone, steps_done=1, attempt=1))
    await bench.ended()
    [completion] = bench.heard.completions
    assert [warning["code"] for warning in completion.warnings] == ["snapshot_unusable"]


async def test_observers_hear_of_stage_runs_that_are_handed_back_or_abandoned(bench: Bench) -> None:
    bench.offer(1, stage="second")
    await bench.ended()
    bench.runner.act = take_for_ever
    bench.offer(2)
    await bench.entered()
    bench.executor.stop_runs([2])
    await bench.ended(2)
    bench.offer(3)
    await bench.entered()
    bench.ledger.fenced = True
    bench.executor.abandon()
    await bench.ended(3)
    assert {number: result.kind for number, result in bench.heard.results.items()} == {
        1: "released",
        2: "released",
        3: "lost",
    }
    assert [steps[-1] for steps in bench.heard.steps.values()] == ["ended"] * 3


@pytest.mark.parametrize(
    ("wins", "is_fenced", "told"),
    [
        (True, False, {1: "released", 2: "failed"}),
        (False, False, {1: "released", 2: "lost"}),
        (True, True, {1: "lost", 2: "lost"}),
    ],
    ids=["recorded", "lost already", "fenced"],
)
async def test_observers_hear_once_of_what_hangs_and_of_its_neighbours(
    bench: Bench, wins: bool, is_fenced: bool, told: dict[int, str]
) -> None:
    stop = asyncio.Event()
    bench.ledger.wins = wins

    async def ignore_cancelling() -> OmniModelRunnerOutput:
        while not stop.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        return OUTPUT

    bench.runner.act = ignore_cancelling
    for stage_run_id in (1, 2):
        bench.offer(stage_run_id)
    await bench.entered(2)
    bench.ledger.fenced = is_fenced
    bench.executor.stop_runs([2])
    await bench.until(lambda: len(bench.heard.results) == 2)
    assert {number: result.kind for number, result in bench.heard.results.items()} == told
    assert isinstance(bench.heard.results[2].error, EngineDead) is ("failed" in told.values())
    before = {number: list(steps) for number, steps in bench.heard.steps.items()}
    stop.set()
    await bench.ended(2)
    assert bench.heard.steps == before, "nothing is told after the end"
