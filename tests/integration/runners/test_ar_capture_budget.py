"""The thinker's hidden states within a budget: on a real engine, never above it, and given back on every way out."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from omni_jobs.errors import ConfigError, EngineDead, PayloadTooLarge
from tests.oracles.ar import quiet, runner
from tests.processes import one_process_an_engine
from workers.runners.ar.ar_runner import ARRunner
from workers.runners.ar.parameters import ArParameters
from workers.runners.ar.prompts import OmniTextPrompt, OmniTokensPrompt
from workers.stages.types import OmniModelRunnerOutput, Progress

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

PROMPT = list(range(40, 140))
TOKENS = 60
BUDGET = 1 << 20


def prompt(tokens: int = TOKENS, *, capture: bool = True, ids: list[int] = PROMPT) -> OmniTokensPrompt:
    parameters = ArParameters(temperature=0, max_tokens=tokens, ignore_eos=True)
    return OmniTokensPrompt(ids, {}, parameters, seed=1, capture=capture)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def thinker(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ARRunner]:
    """Its budget is set by each test, as ``budget_for``."""
    found = runner(tiny_checkpoint, "thinker", tmp_path_factory.mktemp("spool"))
    found.args = replace(found.args, capture_bytes=BUDGET)
    with one_process_an_engine():
        await found.start()
    yield found
    await found.close()


def budget_for(thinker: ARRunner, requests: float) -> int:
    """Room for so many of ``prompt()``: the bytes of one."""
    assert thinker._budget.reserved == 0
    need = 2 * (len(PROMPT) + TOKENS) * thinker._row_bytes
    thinker._budget.limit = int(requests * need)
    return need


async def until_waits(thinker: ARRunner, count: int) -> None:
    async with asyncio.timeout(60):
        while thinker._budget.waiting < count:
            await asyncio.sleep(0.005)


def spooled(thinker: ARRunner) -> dict[str, int]:
    """The spool's files, and the bytes of the tensors in each: what follows the header of a safetensors file."""
    found = {}
    for path in thinker._spool.directory.iterdir():
        with suppress(FileNotFoundError), path.open("rb") as file:
            header = 8 + int.from_bytes(file.read(8), "little")
            found[path.name] = max(0, os.fstat(file.fileno()).st_size - header)
    return found


async def kept_bytes(thinker: ARRunner) -> int:
    """The hidden states in the engine and in the spool; what moves from one to the other meanwhile counts once."""
    before = spooled(thinker)
    held: int = (await thinker.stats())["held_bytes"]
    after = spooled(thinker)
    return held + sum(size for name, size in before.items() if name in after)


def rows(output: OmniModelRunnerOutput) -> torch.Tensor:
    assert output.hidden_states is not None
    return output.hidden_states


async def test_the_setting_is_the_limit_and_a_row_is_what_it_says(thinker: ARRunner) -> None:
    assert thinker._budget.limit == BUDGET
    output = await thinker.run(prompt(), quiet)
    assert rows(output).shape[1] * rows(output).element_size() == thinker._row_bytes
    assert thinker._budget.reserved == 2 * (len(PROMPT) + TOKENS) * thinker._row_bytes
    output.free()
    assert thinker._budget.reserved == 0


async def test_captures_stay_within_the_budget_and_all_come_through(thinker: ARRunner) -> None:
    alone = await thinker.run(prompt(), quiet)
    alone.free()
    need = budget_for(thinker, 2)
    seen: list[list[Progress]] = [[] for _ in range(8)]
    most = 0

    async def run(n: int) -> torch.Tensor:
        output = await thinker.run(prompt(), seen[n].append)
        found = rows(output).clone()
        await asyncio.sleep(0)
        output.free()
        return found

    tasks = [asyncio.create_task(run(n)) for n in range(8)]
    while not all(task.done() for task in tasks):
        most = max(most, await kept_bytes(thinker))
        assert thinker._budget.reserved <= 2 * need
    for found in await asyncio.gather(*tasks):
        torch.testing.assert_close(found, rows(alone), rtol=1e-4, atol=1e-4)
    assert 0 < most <= 2 * need
    waited = [[progress.waiting for progress in of_one].count(True) for of_one in seen]
    assert waited == [0, 0] + [1] * 6
    assert seen[7][:2] == [Progress(0, None, "waiting"), Progress(0, TOKENS, "tokens")]
    assert thinker._budget.reserved == 0


async def test_one_too_large_alone_fails_and_one_that_captures_nothing_does_not(thinker: ARRunner) -> None:
    need = budget_for(thinker, 0.9)
    with pytest.raises(PayloadTooLarge) as caught:
        await thinker.run(prompt(), quiet)
    assert f"needs {need:,} bytes" in caught.value.message
    assert "OMNI_JOBS_CAPTURE_BYTES" in caught.value.message
    assert (caught.value.stage, caught.value.retryable) == ("thinker", False)
    output = await thinker.run(prompt(capture=False), quiet)
    assert len(output.token_ids) == TOKENS
    assert output.hidden_states is None
    assert thinker._budget.reserved == 0


async def test_a_text_prompts_tokens_are_counted_before_it_enters_the_engine(thinker: ARRunner) -> None:
    budget_for(thinker, 1)
    words = OmniTextPrompt("word " * 200, {}, ArParameters(temperature=0, max_tokens=4), seed=1, capture=True)
    before = (await thinker.stats())["requests"]
    with pytest.raises(PayloadTooLarge):
        await thinker.run(words, quiet)
    assert (await thinker.stats())["requests"] == before


async def test_one_that_captures_nothing_does_not_wait_and_an_output_keeps_its_room(thinker: ARRunner) -> None:
    budget_for(thinker, 1)
    kept = await thinker.run(prompt(), quiet)  # not stored yet
    waiting = asyncio.create_task(thinker.run(prompt(), quiet))
    await until_waits(thinker, 1)
    async with asyncio.timeout(60):
        await thinker.run(prompt(capture=False), quiet)
    assert not waiting.done()
    kept.free()
    (await waiting).free()
    assert thinker._budget.reserved == 0


async def test_cancelled_waiting_or_running_it_gives_its_room_back(thinker: ARRunner) -> None:
    need = budget_for(thinker, 1)
    running_now = asyncio.Event()
    running = asyncio.create_task(thinker.run(prompt(), lambda progress: running_now.set()))
    first = asyncio.create_task(thinker.run(prompt(), quiet))
    second = asyncio.create_task(thinker.run(prompt(), quiet))
    await until_waits(thinker, 2)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await running_now.wait()
    assert thinker._budget.reserved == need
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with asyncio.timeout(60):
        (await second).free()
    assert thinker._budget.reserved == 0
    assert (await thinker.stats())["held_captures"] == 0


async def test_no_room_for_the_buffers_of_the_copies_is_refused(thinker: ARRunner) -> None:
    with pytest.raises(ConfigError, match="OMNI_JOBS_CAPTURE_BYTES"):
        thinker._set_budget(thinker._row_bytes, buffer_bytes=BUDGET + 1)


async def test_the_default_of_a_worker_with_dockers_shared_memory_takes_requests(
    thinker: ARRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 MiB, of which a tenth stays free, not the 256 MiB of the setting."""

    def statvfs(path: object) -> os.statvfs_result:
        return os.statvfs_result((4096, 4096, 16384, 16384, 16384, 0, 0, 0, 0, 255))

    monkeypatch.setattr(os, "statvfs", statvfs)
    monkeypatch.setattr(thinker, "args", replace(thinker.args, capture_bytes=None))
    monkeypatch.setattr(thinker._spool, "min_free_bytes", 256 << 20)
    thinker._set_budget(thinker._row_bytes, buffer_bytes=0)
    assert thinker._budget.limit == (64 << 20) - (64 << 20) // 10
    (await thinker.run(prompt(), quiet)).free()
    thinker._budget.limit = 1
    with pytest.raises(PayloadTooLarge, match="larger spool"):
        await thinker.run(prompt(), quiet)
    with pytest.raises(ConfigError, match="larger spool"):
        thinker._set_budget(thinker._row_bytes, buffer_bytes=64 << 20)


async def test_a_dead_engine_frees_what_waited_and_what_ran(thinker: ARRunner) -> None:
    """The last one: it kills the engine."""
    budget_for(thinker, 1)
    running_now = asyncio.Event()
    tasks = [asyncio.create_task(thinker.run(prompt(), lambda progress: running_now.set())) for _ in range(3)]
    await running_now.wait()
    await until_waits(thinker, 2)
    os.kill((await thinker.stats())["pid"], signal.SIGKILL)
    for found in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(found, EngineDead), found
    assert thinker._budget.reserved == 0
