"""The executor: what its observers hear."""

import asyncio

import pytest

from omni_jobs.errors import EngineDead, ModelError, OmniJobsError
from omni_jobs.jobs import StoredSnapshot
from omni_jobs.storage import ObjectRef, snapshot_key
from tests.unit.execution.executor_bench import OUTPUT, Bench, raising, take_for_ever
from workers.execution.observers.run_observer import RunResult
from workers.stages.types import OmniModelRunnerOutput

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
