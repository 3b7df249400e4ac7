"""The engine's own process on a device: snapshots outlive it, and a lack of memory ends one run and nothing else."""

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from omni_jobs.errors import EngineDead, OmniJobsError, OutOfMemory
from tests.gpu.components import CODE2WAV, QWEN_IMAGE, QWEN_IMAGE_DECODE, Component
from tests.gpu.conftest import Record
from workers.runners.diffusion.diffusion_runner import DiffusionRunner
from workers.runners.diffusion.engine_process import EngineProcess
from workers.stages.types import OmniModelRunnerOutput, Progress, Snapshot, convert_tensors

BLOCKS = (1 << 30, 64 << 20, 1 << 20)  # bytes that are taken of a device as long as there are any
SOME = 40  # of the smallest blocks


class Kept:
    """Keeps the newest snapshot. Implements ``Snapshots``."""

    def __init__(self, newest: Snapshot | None = None) -> None:
        self.newest = newest
        self.refused: list[OmniJobsError] = []
        self.taken = asyncio.Event()

    def put(self, snapshot: Snapshot) -> None:
        # Copies, because the engine's spool goes with it.
        tensors = convert_tensors(snapshot.tensors, torch.clone)
        self.newest = Snapshot(tensors, snapshot.values, snapshot.steps_done)
        self.taken.set()

    def refuse(self, error: OmniJobsError) -> None:
        self.refused.append(error)

    def miss(self, error: OmniJobsError) -> None:
        raise error


def nothing(_: Progress) -> None:
    """A sink for progress nobody reads."""


def tensor(output: OmniModelRunnerOutput, component: Component) -> torch.Tensor:
    found = output.multimodal_outputs[component.output]
    assert isinstance(found, torch.Tensor)
    return found


def test_a_run_goes_on_from_its_snapshot_when_its_engine_is_killed(
    qwen_image: Path, device: torch.device, tmp_path: Path
) -> None:
    prompt = QWEN_IMAGE.prompt(3, steps=200)

    async def scenario() -> None:
        args = QWEN_IMAGE.args(qwen_image, device, tmp_path, snapshot_every_steps=7)
        engine, kept = EngineProcess(args), Kept()
        await engine.start()
        run = asyncio.create_task(engine.run(prompt, nothing, kept))
        async with asyncio.timeout(120):
            await kept.taken.wait()
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineDead):
            await run
        await engine.close()
        assert kept.newest is not None
        assert 7 <= kept.newest.steps_done < 200
        successor, resumed = EngineProcess(args), Kept(kept.newest)
        await successor.start()
        try:
            first: list[int] = []
            found = await successor.run(prompt, lambda progress: first.append(progress.done), resumed)
            whole = await successor.run(prompt, nothing)
        finally:
            await successor.close()
        assert resumed.refused == []
        assert first[0] > kept.newest.steps_done
        # Other steps were taken by another process, but with the same kernels.
        torch.testing.assert_close(tensor(found, QWEN_IMAGE), tensor(whole, QWEN_IMAGE), rtol=1e-2, atol=1e-2)

    asyncio.run(scenario())


def test_what_exceeds_a_workers_share_fails_alone_and_may_be_tried_again(
    qwen2_5_omni: Path, device: torch.device, tmp_path: Path, record: Record
) -> None:
    if device.type != "cuda":
        pytest.skip("a CPU's allocator has no limit of its own")
    short = CODE2WAV.prompt(1)
    codes = torch.randint(0, 8192, (4000,), generator=torch.Generator().manual_seed(0))
    long = replace(short, tensors={"codes": codes})

    async def needs() -> tuple[int, int]:
        """Return the device's bytes that the runner needs for each, its weights counted."""
        before = torch.cuda.memory_allocated(device)
        runner = DiffusionRunner(CODE2WAV.args(qwen2_5_omni, device))
        await runner.start()
        found = []
        for prompt in (short, long):
            torch.cuda.reset_peak_memory_stats(device)
            await runner.run(prompt, nothing)
            found.append(torch.cuda.max_memory_allocated(device) - before)
        await runner.close()
        return found[0], found[1]

    async def scenario() -> None:
        less, more = await needs()
        record("code2wav, memory for 40 and for 4,000 codes", "GB", [less / 1e9, more / 1e9])
        assert more > less + (128 << 20)
        share = (less + more) / 2 / torch.cuda.get_device_properties(device).total_memory
        engine = EngineProcess(CODE2WAV.args(qwen2_5_omni, device, tmp_path, gpu_memory_utilization=share))
        await engine.start()
        try:
            runs = (engine.run(each, nothing) for each in (short, short, long, short))
            found = await asyncio.gather(*runs, return_exceptions=True)
            kinds = [type(each) for each in found]
            assert kinds == [OmniModelRunnerOutput, OmniModelRunnerOutput, OutOfMemory, OmniModelRunnerOutput], found
            assert isinstance(found[2], OutOfMemory)
            assert found[2].retryable
            assert engine.healthy
            again = tensor(await engine.run(short, nothing), CODE2WAV)
            assert isinstance(found[0], OmniModelRunnerOutput)
            torch.testing.assert_close(again, tensor(found[0], CODE2WAV), rtol=0, atol=1e-4)
        finally:
            await engine.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("component", [QWEN_IMAGE, QWEN_IMAGE_DECODE, CODE2WAV], ids=str)
def test_a_card_that_others_fill_costs_runs_and_not_the_engine(
    component: Component, device: torch.device, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The engine has run nothing yet, so that CUDA's libraries lack memory for themselves too."""
    if device.type != "cuda":
        pytest.skip("a CPU shares no memory of a device")
    checkpoint: Path = request.getfixturevalue(component.family)

    async def scenario() -> None:
        engine = EngineProcess(component.args(checkpoint, device, tmp_path))
        await engine.start()
        try:
            taken = _take_all(device)
            found = await _outcomes(engine, component)
            assert all(isinstance(each, OutOfMemory) for each in found), found
            del taken[-SOME:]
            torch.cuda.empty_cache()
            found = await _outcomes(engine, component)
            assert all(isinstance(each, OutOfMemory | OmniModelRunnerOutput) for each in found), found
            taken.clear()
            torch.cuda.empty_cache()
            assert engine.healthy
            again = await engine.run(component.prompt(1), nothing)
            assert tensor(again, component).isfinite().all()
        finally:
            await engine.close()

    asyncio.run(scenario())


def test_a_full_card_lets_no_model_be_loaded(qwen_image: Path, device: torch.device, tmp_path: Path) -> None:
    if device.type != "cuda":
        pytest.skip("a CPU shares no memory of a device")

    async def scenario() -> None:
        taken = _take_all(device)
        engine = EngineProcess(QWEN_IMAGE.args(qwen_image, device, tmp_path))
        try:
            with pytest.raises(OmniJobsError) as caught:
                await engine.start()
        finally:
            del taken
            torch.cuda.empty_cache()
            await engine.close()
        assert "memory" in str(caught.value)

    asyncio.run(scenario())


async def _outcomes(engine: EngineProcess, component: Component) -> list[OmniModelRunnerOutput | BaseException]:
    runs = (engine.run(component.prompt(seed), nothing) for seed in (1, 2))
    return await asyncio.gather(*runs, return_exceptions=True)


def _take_all(device: torch.device) -> list[torch.Tensor]:
    """Return blocks that fill the device."""
    torch.cuda.empty_cache()
    taken = []
    for size in BLOCKS:
        try:
            while True:
                taken.append(torch.empty(size, dtype=torch.uint8, device=device))
        except torch.OutOfMemoryError:
            continue
    return taken
