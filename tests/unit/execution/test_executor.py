"""The executor: each end that a stage run can come to, and the reports that its ledger gets."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from omni_jobs.errors import EngineDead, ModelError, OmniJobsError, OutOfMemory
from tests.unit.execution.executor_bench import OUTPUT, Bench, raising, settled, take_for_ever
from workers.execution.device_time import DeviceTime
from workers.runners.runner import ProgressSink
from workers.stages.types import WAITING, EnginePrompt, OmniModelRunnerOutput, Progress


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
    completed, *others = bench.ledger.steps
    assert completed is not None
    assert None not in completed
    for steps in others:  # they ended while they ran
        assert steps is not None
        assert [seconds is None for seconds in steps] == [False, False, True]


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
