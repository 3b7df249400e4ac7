"""A diffusion engine on two devices: the same results, and an end with either rank's."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_jobs.errors import ConfigError, EngineDead, ModelError, OmniJobsError, OutOfMemory
from tests.integration.runners.codec_prompts import nothing
from tests.integration.runners.qwen_image_prompts import prompt, run
from tests.integration.runners.test_snapshots import Kept
from tests.integration.runners.wan_prompts import animated, film_prompt
from tests.oracles.picture_lora import build_picture_adapter
from tests.processes import named, until_gone
from workers.models.glm_image.denoise import load_denoise
from workers.models.glm_image.parameters import DenoiseParameters
from workers.models.pictures.guidance import Pass
from workers.models.qwen_image.denoiser import Denoiser, load_denoiser
from workers.models.wan.denoiser import load_animator
from workers.models.wan.denoiser import load_denoiser as load_film
from workers.runners.diffusion.diffusion_runner import DiffusionRunner
from workers.runners.diffusion.engine_process import EngineProcess
from workers.runners.diffusion.engine_settings import DiffusionEngine
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.ranks import Ranks, RankTensors
from workers.runners.spool import Spool
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig
from workers.stages.types import Progress, Snapshot

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

CPU = torch.device("cpu")
LONG = prompt(steps=200)


def args(checkpoint: Path, spool: Path, family: str = "qwen_image", **engine: Any) -> OmniEngineArgs:
    model = OmniModelConfig(checkpoint, family, "denoise")
    settings = DiffusionEngine(devices=2, **engine)
    return OmniEngineArgs("draw", model, "cpu", None, 8, settings, spool_dir=spool)


@asynccontextmanager
async def started(args: OmniEngineArgs) -> AsyncIterator[DiffusionRunner]:
    runner = DiffusionRunner(args)
    await runner.start()
    try:
        yield runner
    finally:
        await runner.close()


@pytest.fixture(scope="module")
def checkpoint(tiny_qwen_images: Callable[[int], Path]) -> Path:
    return tiny_qwen_images(0)


def second_rank(above: int) -> int:
    (pid,) = named(above, b"second_rank")
    return pid


async def begun(running: Callable[[Callable[[Progress], None]], Any]) -> asyncio.Task[Any]:
    """Start a run, and return once it has taken a step."""
    stepped = asyncio.Event()
    task = asyncio.create_task(running(lambda progress: stepped.set()))
    await stepped.wait()
    return task


async def test_rows_are_as_on_one_device_and_no_rank_outlives_the_engine(checkpoint: Path, tmp_path: Path) -> None:
    """Guided and unguided, with an adapter and without, cancelled, refused, together and one after the other."""
    loud = str(build_picture_adapter(checkpoint, tmp_path / "loud", 1))
    alone: Denoiser = load_denoiser(OmniModelConfig(checkpoint, "qwen_image", "denoise"), CPU, None)
    alone.adapt({"loud": loud})
    engine = EngineProcess(args(checkpoint, tmp_path / "spool", lora_modules={"loud": loud}))
    await engine.start()
    try:
        assert engine.pid is not None
        rank = second_rank(engine.pid)
        cancelled = await begun(lambda progress: engine.run(LONG, progress))
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        given = [
            prompt(5 + n, None if n == 1 else 3, seed=n, steps=2 + n, lora="loud" if n > 2 else None) for n in range(5)
        ]
        outputs = await asyncio.gather(*(engine.run(each, nothing) for each in given))
        with pytest.raises(ModelError):
            await engine.run(replace(given[0], tensors={}), nothing)
        outputs.append(await engine.run(given[0], nothing))
        for each, output in zip([*given, given[0]], outputs, strict=True):
            expected: Any = run(alone, [each])[0].tensors["latents"]
            found: Any = output.multimodal_outputs["latents"]
            assert torch.allclose(found, expected, rtol=0, atol=1e-5)
        running = await begun(lambda progress: engine.run(LONG, progress))
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineDead):
            await running
        until_gone([rank], within_s=60)
    finally:
        await engine.close()


async def test_glm_image_is_as_on_one_device(tiny_glm_images: Callable[[int], Path], tmp_path: Path) -> None:
    checkpoint = tiny_glm_images(0)
    ids = torch.arange(6) * 100
    values = {"height": 64, "width": 96, "glyph_texts": ["Open"]}
    given = [DiffusionPrompt({"token_ids": ids + n}, values, DenoiseParameters(steps=2 + n), n) for n in range(3)]
    alone = load_denoise(OmniModelConfig(checkpoint, "glm_image", "denoise"), CPU, None)
    async with started(args(checkpoint, tmp_path, "glm_image")) as runner:
        outputs = await asyncio.gather(*(runner.run(each, nothing) for each in given))
    for each, output in zip(given, outputs, strict=True):
        expected: Any = run(alone, [each])[0].tensors["latents"]
        found: Any = output.multimodal_outputs["latents"]
        assert torch.allclose(found, expected, rtol=0, atol=1e-5)


async def test_wan_is_as_on_one_device_through_both_transformers(
    tiny_wans: Callable[[int], Path], tmp_path: Path
) -> None:
    """Rows of a step are on either side of the boundary, guided and unguided, and one goes on from a snapshot."""
    checkpoint = tiny_wans(0)
    alone = load_film(OmniModelConfig(checkpoint, "wan", "denoise"), CPU, None)
    given = [film_prompt(5 + n, None if n == 1 else 3, seed=n, steps=3 + 2 * n) for n in range(4)]
    with torch.inference_mode():
        row = alone.begin(given[2])
        alone.step([row])
        assert alone._expert(row) == 0
        saved = alone.save(row)
    kept = Kept(Snapshot(saved.tensors, saved.values, row.steps_done))
    async with started(args(checkpoint, tmp_path, "wan")) as runner:
        outputs = await asyncio.gather(
            *(runner.run(each, nothing, kept if n == 2 else None) for n, each in enumerate(given))
        )
    assert kept.refused == []
    for each, output in zip(given, outputs, strict=True):
        expected: Any = run(alone, [each])[0].tensors["latents"]
        found: Any = output.multimodal_outputs["latents"]
        assert torch.allclose(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("family", ["wan", "wan_i2v"])
def test_the_second_devices_row_has_the_transformer_of_its_step(
    family: str, tiny_wans: Callable[[int], Path], tiny_wan_i2vs: Callable[[int], Path]
) -> None:
    build, load, new = (
        (tiny_wans, load_film, film_prompt) if family == "wan" else (tiny_wan_i2vs, load_animator, animated)
    )
    model = load(OmniModelConfig(build(0), family, "denoise"), CPU, None)
    with torch.inference_mode():
        row, told = (model.begin(new(seed=1, steps=5)) for _ in range(2))
        turns = []
        while row.steps_done < 5:
            told.steps_done = row.steps_done
            turns.append(model._expert(told))
            unconditional = model.forward([Pass(row, row.unconditional)])[0]
            assert torch.equal(model.unconditional([told], [row.latents])[0], unconditional)
            model.step([row])
    assert set(turns) == {0, 1}


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (signal.SIGKILL, "second device ended with status -9"),
        (signal.SIGSTOP, r"has not answered within 1 s \(engine\.rank_timeout_s\)"),
    ],
)
async def test_a_rank_that_ends_or_hangs_is_a_dead_engine(
    checkpoint: Path, tmp_path: Path, number: signal.Signals, message: str
) -> None:
    async with started(args(checkpoint, tmp_path, rank_timeout_s=1 if number == signal.SIGSTOP else 600)) as runner:
        rank = second_rank(os.getpid())
        running = asyncio.create_task(runner.run(LONG, nothing))
        os.kill(rank, number)
        with pytest.raises(EngineDead, match=message) as caught:
            await running
        assert caught.value.retryable
        assert not runner.healthy
        if number == signal.SIGSTOP:
            os.kill(rank, signal.SIGCONT)  # it goes on, and may answer now
        with pytest.raises(EngineDead):
            await runner.run(prompt(), nothing)
    until_gone([rank], within_s=60)


def test_an_answer_that_comes_late_is_not_taken_for_that_to_the_next_question(checkpoint: Path, tmp_path: Path) -> None:
    model: Denoiser = load_denoiser(OmniModelConfig(checkpoint, "qwen_image", "denoise"), CPU, None)
    given = args(checkpoint, tmp_path, rank_timeout_s=1)
    assert isinstance(given.engine, DiffusionEngine)
    ranks = Ranks(given, given.engine)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ranks._connection, ranks._tensors = ours, RankTensors(0, CPU, 1)
        first, next_ = ([model.begin(prompt(seed=seed))] for seed in (1, 2))
        with pytest.raises(EngineDead, match="has not answered within 1 s"):
            ranks.discard(first)
        with pytest.raises(BrokenPipeError):
            theirs.sendall(b'{"done": true}\n')
        with pytest.raises(EngineDead, match="is not connected"):
            ranks.predictions(next_)


async def test_an_idle_engine_whose_rank_ends_is_dead_and_its_worker_hears_of_it(
    checkpoint: Path, tmp_path: Path
) -> None:
    dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    runner = DiffusionRunner(args(checkpoint, tmp_path), on_dead=dead.set_result)
    await runner.start()
    try:
        os.kill(second_rank(os.getpid()), signal.SIGKILL)
        assert "second device ended with status -9" in await dead
        assert not runner.healthy
    finally:
        await runner.close()


async def test_what_one_rank_cannot_load_is_the_engines_error(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        await DiffusionRunner(args(checkpoint, tmp_path, lora_modules={"gone": "/nowhere"})).start()
    assert caught.value.field == "engine.lora_modules.gone"
    until_gone(named(os.getpid(), b"second_rank"), within_s=60)


def test_a_component_that_takes_one_device_alone_refuses_two(checkpoint: Path, tmp_path: Path) -> None:
    decode = OmniModelConfig(checkpoint, "qwen_image", "decode")
    with pytest.raises(OmniJobsError, match="takes no devices") as caught:
        DiffusionRunner(replace(args(checkpoint, tmp_path), model=decode))
    assert caught.value.field == "engine.devices"


def test_a_row_whose_neighbour_cannot_be_sent_comes_with_its_own_prompt(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent of a step for which a prompt is missing or finds no room, and its first row is tried alone."""
    model: Denoiser = load_denoiser(OmniModelConfig(checkpoint, "qwen_image", "denoise"), CPU, None)
    given = args(checkpoint, tmp_path / "spool")
    assert isinstance(given.engine, DiffusionEngine)
    ranks = Ranks(given, given.engine)
    ours, theirs = socket.socketpair()
    with ours, theirs, closing(Spool(given.spool_dir)) as spool:
        ranks._connection, ranks._spool = ours, spool
        rows = [model.begin(prompt(seed=seed)) for seed in (1, 2)]
        rows[1].prompt = None
        with pytest.raises(ModelError, match="must have its prompt"):
            ranks.begin(rows)
        spool.min_free_bytes = 1
        with monkeypatch.context() as full:
            full.setattr(os, "statvfs", lambda _: os.statvfs_result((4096, 4096, 1000, 0, 0, 0, 0, 0, 0, 255)))
            with pytest.raises(OutOfMemory, match="no room"):
                ranks.begin(rows[:1])
        assert rows[0].elsewhere is None
        assert not [file for file in spool.directory.iterdir() if file.name.startswith("prompt")]
        with pytest.raises(EngineDead, match="is not there"):  # the latents follow, and no rank has joined
            ranks.begin(rows[:1])
        (line,) = theirs.recv(1 << 16).splitlines()
    assert json.loads(line)["rows"][0]["prompt"]["seed"] == 1
