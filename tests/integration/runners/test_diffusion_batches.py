"""A code2wav request's result is its own, whatever its batch; what does not fit fails alone; nothing is left behind."""

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from omni_jobs.errors import EngineDead, ModelError
from tests.integration.runners.codec_prompts import codec_prompt, run_batch
from workers.models.qwen2_5_omni.denoising import Denoising
from workers.models.qwen2_5_omni.parameters import OdeParameters
from workers.models.qwen2_5_omni.token2wav import Token2Wav, load_token2wav
from workers.runners.diffusion.diffusion_runner import DiffusionRunner
from workers.runners.diffusion.engine_settings import DiffusionEngine
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig
from workers.stages.types import OmniModelRunnerOutput


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Path) -> Token2Wav:
    return load_token2wav(tiny_checkpoint, torch.device("cpu"), voices=["Chelsie", "Ethan"])


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[DiffusionPrompt], dict[int, int]]:
    """Prompts of one batch, and after which step (0: before the first) some rows leave it."""
    parameters = OdeParameters(
        solver=draw(st.sampled_from(["rk4", "midpoint", "euler"])),
        steps=draw(st.integers(2, 5)),
        guidance_scale=draw(st.sampled_from([0.0, 0.5, 3.0])),
        sway_coefficient=draw(st.sampled_from([-1.0, 0.0, 0.7])),
    )
    # 12 codes are one block of the transformer.
    lengths = draw(st.lists(st.one_of(st.integers(1, 40), st.sampled_from([11, 12, 13, 24])), min_size=2, max_size=5))
    prompts = [
        codec_prompt(
            torch.randint(0, 8192, (length,), generator=torch.Generator().manual_seed(draw(st.integers(0, 99)))),
            draw(st.sampled_from(["Chelsie", "Ethan"])),
            parameters,
            draw(st.integers(0, 2**63 - 1)),
        )
        for length in lengths
    ]
    rows = st.integers(0, len(prompts) - 1)
    leaving = draw(st.dictionaries(rows, st.integers(0, parameters.steps - 1), max_size=len(prompts) - 1))
    return prompts, leaving


# The examples are the same in each run, and few: every one runs up to six batches.
@settings(
    max_examples=25,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(batches())
def test_a_row_is_what_it_is_alone(model: Token2Wav, batch: tuple[list[DiffusionPrompt], dict[int, int]]) -> None:
    prompts, leaving = batch
    for n, row in enumerate(run_batch(model, prompts, leaving)):
        if n in leaving:
            assert row.result is None
        else:
            torch.testing.assert_close(row.waveform(), run_batch(model, [row.prompt])[0].waveform(), rtol=0, atol=1e-5)


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts allocations on Linux alone")
def test_out_of_memory_fails_only_the_row_that_does_not_fit_alone(tiny_checkpoint: Path) -> None:
    """No patch: a process with a limit on its memory."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.runners.diffusion_memory", tiny_checkpoint],
        cwd=Path(__file__).parents[3],
        # Large tensors are given back at once, so that the room is what the test says.
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    fits, does_not = "OmniModelRunnerOutput", "OutOfMemory"
    assert json.loads(done.stdout) == {"batch": [fits, fits, does_not, fits], "after": [fits]}
    assert done.stderr.count("trying each alone") == 1


# Clean-up


class Held:
    """Every Denoising there was, as long as anything holds it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> None:
        self.loop = asyncio.get_running_loop()
        self.first_step = asyncio.Event()
        self.go_on = threading.Event()
        self._seen: weakref.WeakSet[Denoising] = weakref.WeakSet()
        step = Denoising.step

        def noted(denoising: Denoising) -> None:
            self._seen.add(denoising)
            self.loop.call_soon_threadsafe(self.first_step.set)
            if not self.go_on.wait(60):
                raise TimeoutError("nobody let the step go on")
            if fails:
                raise RuntimeError("the kernel is not implemented")
            step(denoising)

        monkeypatch.setattr(Denoising, "step", noted)

    def count(self) -> int:
        gc.collect()
        return len(self._seen)


def engine_args(checkpoint: Path, slots: int = 4) -> OmniEngineArgs:
    model = OmniModelConfig(checkpoint, "qwen2_5_omni", "code2wav", ("Chelsie",))
    return OmniEngineArgs("clean-up", model, "cpu", None, slots, DiffusionEngine())


def ours(length: int) -> DiffusionPrompt:
    return codec_prompt(torch.full((length,), 5), "Chelsie", OdeParameters(steps=3, solver="euler"), length)


@pytest.mark.parametrize("path", ["success", "error", "cancel", "time limit", "close"])
async def test_nothing_is_held_after(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    runner = DiffusionRunner(engine_args(tiny_checkpoint, slots=2))
    await runner.start()
    (thread,) = (thread for thread in threading.enumerate() if thread.name.startswith("clean-up-diffusion"))
    model = weakref.ref(runner._worker.model_runner.model)
    held = Held(monkeypatch, fails=path == "error")

    limits: list[asyncio.Timeout] = []

    async def run(length: int) -> OmniModelRunnerOutput:
        async with asyncio.timeout(None) as limit:
            limits.append(limit)
            return await runner.run(ours(length), lambda _: None)

    # Two fill the queue, the third waits for room.
    tasks = [asyncio.create_task(run(length)) for length in (3, 4)]
    await held.first_step.wait()
    tasks.append(asyncio.create_task(run(5)))
    await asyncio.sleep(0)
    closing = None
    if path == "cancel":
        for task in tasks:
            task.cancel()
    elif path == "time limit":
        for limit in (limits[0], limits[2]):  # one in the batch, one that waits for room
            limit.reschedule(held.loop.time())
        await asyncio.wait((tasks[0], tasks[2]))
    elif path == "close":
        closing = asyncio.create_task(runner.close())
        await asyncio.sleep(0)
    held.go_on.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    kinds = {
        "success": [OmniModelRunnerOutput] * 3,
        "error": [ModelError] * 3,
        "cancel": [asyncio.CancelledError] * 3,
        "time limit": [TimeoutError, OmniModelRunnerOutput, TimeoutError],
        "close": [EngineDead] * 3,
    }
    assert [type(result) for result in results] == kinds[path]
    waveforms = [weakref.ref(r.multimodal_outputs["waveform"]) for r in results if isinstance(r, OmniModelRunnerOutput)]

    if path not in ("error", "close"):  # one more goes through: what was left is out of the engine by then
        await run(2)
    del results, tasks
    limits.clear()  # they hold their tasks
    await (closing or asyncio.sleep(0))
    assert runner._waiting == []
    await runner.close()
    assert held.count() == 0
    assert [ref() for ref in waveforms] == [None] * len(waveforms)
    assert not thread.is_alive()
    assert model() is None
