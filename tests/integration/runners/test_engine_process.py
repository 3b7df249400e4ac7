"""code2wav's engine in a process of its own: the same results and errors, and an end whatever ends first."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from omni_jobs.errors import ConfigError, EngineDead, ModelError
from tests.integration.runners.codec_prompts import args, codec_prompt, nothing, prompt, run_together, waveform
from workers.models.qwen2_5_omni.parameters import OdeParameters
from workers.models.qwen2_5_omni.token2wav import load_token2wav
from workers.runners.ar.parameters import ArParameters
from workers.runners.ar.prompts import OmniTokensPrompt
from workers.runners.diffusion.engine_process import EngineProcess
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import EnginePrompt, OmniModelRunnerOutput, Progress

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"),
]

LONG = OdeParameters(steps=1000)
SECRETS = ("OMNI_JOBS_DATABASE_URL", "OMNI_JOBS_SERVERS", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineProcess]:
    engine = EngineProcess(_args(tiny_checkpoint, tmp_path_factory.mktemp("spool")))
    with pytest.MonkeyPatch.context() as patch:
        for name in SECRETS:
            patch.setenv(name, "planted-secret")
        await engine.start()
    yield engine
    await engine.close()


@pytest_asyncio.fixture(loop_scope="module")
async def own_engine(tiny_checkpoint: Path, tmp_path: Path) -> AsyncIterator[EngineProcess]:
    engine = EngineProcess(_args(tiny_checkpoint, tmp_path))
    await engine.start()
    yield engine
    await engine.close()


def _args(checkpoint: Path, spool: Path) -> OmniEngineArgs:
    return replace(args(checkpoint), spool_dir=spool)


class _Started:
    """Says when the model has done a step."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def __call__(self, progress: Progress) -> None:
        self.event.set()


async def _running(engine: EngineProcess) -> asyncio.Task[OmniModelRunnerOutput]:
    """A run that takes minutes, its first step done."""
    started = _Started()
    task = asyncio.create_task(engine.run(prompt(60, parameters=LONG), started))
    async with asyncio.timeout(60):
        await started.event.wait()
    return task


async def test_the_engine_has_no_secret_of_its_worker(engine: EngineProcess) -> None:
    variables = Path(f"/proc/{engine.pid}/environ").read_bytes()
    assert b"PATH=" in variables
    assert b"planted-secret" not in variables


def _spooled(engine: EngineProcess) -> list[str]:
    directory = engine._spool.directory
    return [name for name in os.listdir(directory) if name != ".lock"] if directory.exists() else []


async def _gone(pid: int) -> None:
    async with asyncio.timeout(20):
        while Path(f"/proc/{pid}").exists():
            await asyncio.sleep(0.02)


async def test_the_waveforms_are_those_of_the_model(engine: EngineProcess, tiny_checkpoint: Path) -> None:
    model = load_token2wav(tiny_checkpoint, torch.device("cpu"), voices=["Chelsie", "Ethan"])
    prompts = [prompt(20), prompt(33, voice="Ethan"), prompt(7, seed=(1 << 63) - 1)]
    found = await asyncio.gather(*(engine.run(one, nothing) for one in prompts))
    for one, output in zip(prompts, found, strict=True):
        torch.testing.assert_close(waveform(output), run_together(model, [one])[0].waveform(), rtol=0, atol=1e-5)
    assert _spooled(engine) == []


async def test_progress_comes_in_order_and_to_its_end(engine: EngineProcess) -> None:
    seen: list[Progress] = []
    await engine.run(prompt(12), seen.append)
    assert seen == [Progress(done, 3, "steps") for done in (1, 2, 3)]


async def test_what_the_model_refuses_comes_as_its_error(engine: EngineProcess) -> None:
    wrong = codec_prompt(torch.tensor([99_999]), "Chelsie", OdeParameters(), 1)
    with pytest.raises(ModelError, match="99999") as caught:
        await engine.run(wrong, nothing)
    assert caught.value.field == "codes"
    assert engine.healthy


async def test_another_kind_of_input_is_refused(engine: EngineProcess) -> None:
    wrong: EnginePrompt = OmniTokensPrompt([1], {}, ArParameters(), 0, False)
    with pytest.raises(ModelError, match="OmniTokensPrompt"):
        await engine.run(wrong, nothing)


async def test_a_cancelled_run_ends_and_the_others_go_on(engine: EngineProcess) -> None:
    leaving = await _running(engine)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    async with asyncio.timeout(60):  # a thousand steps would take longer
        waveform(await engine.run(prompt(20), nothing))
    assert _spooled(engine) == []


async def test_a_result_nobody_waits_for_leaves_no_file(engine: EngineProcess) -> None:
    last = asyncio.Event()

    def cancel_at_the_end(progress: Progress) -> None:
        if progress.done == progress.total:
            leaving.cancel()
            last.set()

    leaving = asyncio.create_task(engine.run(prompt(20), cancel_at_the_end))
    async with asyncio.timeout(60):
        await last.wait()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await engine.run(prompt(7), nothing)
    assert _spooled(engine) == []


async def test_a_prompt_that_is_written_when_nobody_waits_any_more_leaves_no_file(
    engine: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_write = threading.Event(), threading.Event()
    write = engine._spool.write

    def slow(*file: Any) -> None:
        begun.set()
        assert may_write.wait(20)
        write(*file)

    monkeypatch.setattr(engine._spool, "write", slow)
    leaving = asyncio.create_task(engine.run(prompt(20), nothing))
    await asyncio.to_thread(begun.wait, 20)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    may_write.set()
    monkeypatch.undo()
    await engine.run(prompt(7), nothing)
    assert _spooled(engine) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_are_the_workers_business(engine: EngineProcess, number: signal.Signals) -> None:
    assert engine.pid is not None
    os.kill(engine.pid, number)
    waveform(await engine.run(prompt(7), nothing))


async def test_a_killed_process_is_a_dead_engine(own_engine: EngineProcess) -> None:
    running = await _running(own_engine)
    assert own_engine.pid is not None
    os.kill(own_engine.pid, signal.SIGKILL)
    async with asyncio.timeout(20):
        with pytest.raises(EngineDead, match="ended"):
            await running
    assert not own_engine.healthy
    with pytest.raises(EngineDead):
        await own_engine.run(prompt(7), nothing)


async def test_closing_ends_what_runs(own_engine: EngineProcess) -> None:
    running, pid = await _running(own_engine), own_engine.pid
    async with asyncio.timeout(20):
        await own_engine.close()
        with pytest.raises(EngineDead, match="closed"):
            await running
    await own_engine.close()
    assert pid is not None
    await _gone(pid)
    assert not own_engine.healthy


async def test_a_broken_checkpoint_is_refused_at_the_start(tiny_checkpoint: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    for path in tiny_checkpoint.iterdir():
        (checkpoint / path.name).symlink_to(path)
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "model.safetensors").write_bytes(b"not what it was")
    engine = EngineProcess(_args(checkpoint, tmp_path / "spool"))
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        await engine.start()
    assert caught.value.file == str(checkpoint / "model.safetensors")
    assert not engine.healthy
    assert engine.pid is None
    await engine.close()


_KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.integration.runners.codec_prompts import prompt
from tests.integration.runners.test_engine_process import LONG, _args
from workers.runners.diffusion.engine_process import EngineProcess

async def main():
    engine = EngineProcess(_args(Path(sys.argv[1]), Path(sys.argv[2])))
    await engine.start()

    def die(progress):
        print(engine.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    await engine.run(prompt(60, parameters=LONG), die)

asyncio.run(main())
"""


async def test_nothing_outlives_a_killed_worker(tiny_checkpoint: Path, tmp_path: Path) -> None:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", _KILLED, tiny_checkpoint, tmp_path],
        cwd=Path(__file__).parents[3],
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    await _gone(int(done.stdout))


async def test_without_its_spool_the_engine_is_dead_and_the_prompt_is_not_to_blame(engine: EngineProcess) -> None:
    """Last: it takes the engine's spool away."""
    running = await _running(engine)
    shutil.rmtree(engine._spool.directory)
    with pytest.raises(EngineDead, match="the spool is gone"):
        await engine.run(prompt(7), nothing)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
