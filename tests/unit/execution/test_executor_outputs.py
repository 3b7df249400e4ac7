"""The executor: what runners must not raise, return or report harms its stage run alone."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from omni_jobs.jobs import values
from tests.unit.execution.executor_bench import OUTPUT, Bench, give_output
from workers.stages.types import Artifact, OmniModelRunnerOutput, Progress


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
