"""workers.runners.open_runs: runs end with their engine, and no later than their callers."""

import asyncio
import gc
from contextlib import suppress

import pytest

from omni_jobs.errors import EngineDead, ModelError
from workers.runners.open_runs import OpenRuns
from workers.stages.types import OmniModelRunnerOutput


async def forever() -> OmniModelRunnerOutput:
    await asyncio.Event().wait()
    raise AssertionError


async def soon(error: Exception | None = None) -> OmniModelRunnerOutput:
    await asyncio.sleep(0)
    if error is not None:
        raise error
    return OmniModelRunnerOutput(text="done")


async def test_a_run_gives_its_output_or_its_error() -> None:
    runs = OpenRuns("llm", lambda: True)
    assert (await runs.run(soon)).text == "done"
    with pytest.raises(ModelError, match="wrong"):
        await runs.run(lambda: soon(ModelError("wrong")))
    runs.close()


async def test_closing_ends_runs_and_a_cancelled_caller_stays_cancelled() -> None:
    runs = OpenRuns("llm", lambda: True)
    left, cancelled = (asyncio.create_task(runs.run(forever)) for _ in range(2))
    await asyncio.sleep(0)
    cancelled.cancel()
    runs.close()
    runs.close()
    ends = await asyncio.gather(left, cancelled, return_exceptions=True)
    assert [type(end) for end in ends] == [EngineDead, asyncio.CancelledError]
    assert isinstance(ends[0], EngineDead)
    assert (ends[0].stage, ends[0].message) == ("llm", "the runner was closed")


async def test_a_run_of_which_the_engine_says_nothing_ends_with_it() -> None:
    """vLLM forgets requests that come while its engine dies. The watch begins anew with runs after a pause."""
    alive = True
    runs = OpenRuns("llm", lambda: alive)
    assert (await runs.run(soon)).text == "done"
    hanging = asyncio.create_task(runs.run(forever))
    await asyncio.sleep(0)
    alive = False
    async with asyncio.timeout(30):
        with pytest.raises(EngineDead, match="gone") as caught:
            await hanging
    assert caught.value.stage == "llm"


async def test_no_run_begins_without_an_engine() -> None:
    alive, begun = False, 0

    async def begin() -> OmniModelRunnerOutput:
        nonlocal begun
        begun += 1
        return OmniModelRunnerOutput()

    runs = OpenRuns("llm", lambda: alive)
    with pytest.raises(EngineDead, match="not running"):
        await runs.run(begin)
    alive = True
    await runs.run(begin)
    runs.close()
    with pytest.raises(EngineDead, match="the runner was closed"):
        await runs.run(begin)
    assert begun == 1


async def test_nothing_keeps_a_run_s_error() -> None:
    """Its traceback has the frames of a run, and with them an answer of megabytes."""

    async def fail() -> OmniModelRunnerOutput:
        raise ModelError("of this run")

    runs = OpenRuns("llm", lambda: True)
    gc.collect()
    gc.disable()
    try:
        with suppress(ModelError):
            await runs.run(fail)
        await asyncio.sleep(0)
        assert not [kept for kept in gc.get_objects() if type(kept) is ModelError and str(kept) == "of this run"]
    finally:
        gc.enable()
        runs.close()
