"""A code2wav row's result is its own in any company and when resumed; what does not fit fails alone; nothing stays."""

import asyncio
import gc
import itertools
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from omni_jobs.errors import EngineDead, ModelError
from tests.integration.runners.codec_prompts import codec_prompt, prompt, run_together
from workers.models.qwen2_5_omni.code2wav import Code2Wav
from workers.models.qwen2_5_omni.denoising import MelDenoiser, MelRow
from workers.models.qwen2_5_omni.parameters import OdeParameters, OdeSolver
from workers.models.qwen2_5_omni.token2wav import Token2Wav, load_token2wav
from workers.runners.diffusion.diffusion_runner import DiffusionRunner
from workers.runners.diffusion.engine_settings import DiffusionEngine
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.saved_row import weights_fingerprint
from workers.runners.diffusion.step_budget import StepBudget
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig
from workers.stages.types import OmniModelRunnerOutput


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Path) -> Token2Wav:
    return load_token2wav(tiny_checkpoint, torch.device("cpu"), voices=["Chelsie", "Ethan"])


@dataclass(frozen=True)
class Crowd:
    """Prompts that meet in one engine."""

    prompts: list[DiffusionPrompt]
    arrives: dict[int, int]  # before which tick a prompt comes
    leaves: dict[int, int]  # after how many of its steps nobody waits for it any more
    lacks: set[int]  # the steps, counted by the engine, for which memory lacks unless they are of one row
    budget: int  # frames of a step


@st.composite
def crowds(draw: st.DrawFn) -> Crowd:
    # 12 codes are one block of the transformer.
    lengths = draw(st.lists(st.one_of(st.integers(1, 40), st.sampled_from([11, 12, 13, 24])), min_size=2, max_size=6))
    prompts = [
        codec_prompt(
            torch.randint(0, 8192, (length,), generator=torch.Generator().manual_seed(draw(st.integers(0, 99)))),
            draw(st.sampled_from(["Chelsie", "Ethan"])),
            OdeParameters(
                solver=draw(st.sampled_from(["rk4", "midpoint", "euler"])),
                steps=draw(st.integers(2, 6)),
                guidance_scale=draw(st.sampled_from([0.0, 0.5, 3.0])),
                sway_coefficient=draw(st.sampled_from([-1.0, 0.0, 0.7])),
            ),
            draw(st.integers(0, 2**63 - 1)),
        )
        for length in lengths
    ]
    rows = st.integers(0, len(prompts) - 1)
    return Crowd(
        prompts,
        draw(st.dictionaries(rows, st.integers(0, 8), max_size=len(prompts))),
        draw(st.dictionaries(rows, st.integers(0, 2), max_size=len(prompts) - 1)),
        draw(st.sets(st.integers(0, 8), max_size=2)),
        draw(st.sampled_from([60, 1024])),
    )


# The examples are the same in each run, and few: every one runs up to seven engines.
@settings(
    max_examples=25,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(crowds())
def test_a_row_is_what_it_is_alone(model: Token2Wav, crowd: Crowd) -> None:
    steps, step = itertools.count(), MelDenoiser.step

    def lacks_memory(denoiser: MelDenoiser, rows: Sequence[MelRow]) -> None:
        if next(steps) in crowd.lacks and len(rows) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        step(denoiser, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MelDenoiser, "step", lacks_memory)
        budget = StepBudget(crowd.budget, 8)
        together = run_together(model, crowd.prompts, crowd.leaves, arrives=crowd.arrives, budget=budget)
    for n, row in enumerate(together):
        own_steps = row.cost.steps
        if crowd.leaves.get(n, own_steps + 1) <= own_steps:
            assert row.result is None
            assert row.seen == list(range(1, crowd.leaves[n] + 1))
        else:
            assert row.seen == list(range(1, own_steps + 2))
            alone = run_together(model, [row.prompt])[0].waveform()
            torch.testing.assert_close(row.waveform(), alone, rtol=0, atol=1e-5)


# Saved rows


def steps_of(model: Code2Wav, row: MelRow, count: int) -> MelRow:
    for _ in range(count):
        model.step([row])
    return row


def result_of(model: Code2Wav, row: MelRow) -> torch.Tensor:
    ((_, output),) = model.finish([row], lambda number: True)
    found = output.tensors["waveform"]
    assert isinstance(found, torch.Tensor)
    return found


@pytest.mark.parametrize("done", [0, 1, 3, 4])
@pytest.mark.parametrize("solver", ["rk4", "euler"])
def test_a_resumed_row_ends_as_if_it_had_never_stopped(
    model: Token2Wav, tiny_checkpoint: Path, solver: OdeSolver, done: int
) -> None:
    code2wav, wanted = Code2Wav(model), prompt(33, parameters=OdeParameters(steps=5, solver=solver))
    row = steps_of(code2wav, code2wav.begin(wanted), done)
    saved = code2wav.save(row)
    values = json.loads(json.dumps(saved.values))
    whole = result_of(code2wav, steps_of(code2wav, row, 4 - done))
    other = Code2Wav(load_token2wav(tiny_checkpoint, torch.device("cpu")))  # as in another process
    resumed = other.resume(wanted, saved.tensors, values)
    assert resumed.steps_done == done
    assert torch.equal(result_of(other, steps_of(other, resumed, 4 - done)), whole)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tensors": {}}, "tensors.mel"),
        ({"mel": torch.zeros(20, 80)}, "tensors.mel"),
        ({"mel": torch.zeros(40, 80, dtype=torch.float64)}, "tensors.mel"),
        ({"mel": torch.full((40, 80), torch.inf)}, "tensors.mel"),
        ({"mel": [torch.zeros(40, 80)]}, "tensors.mel"),
        ({"steps_done": -1}, "values.steps_done"),
        ({"steps_done": 3}, "values.steps_done"),
        ({"steps_done": True}, "values.steps_done"),
        ({"steps_done": "1"}, "values.steps_done"),
        ({"seed": 21}, "values.seed"),
        ({"parameters": OdeParameters(steps=4).model_dump()}, "values.parameters"),
        ({"model": "another"}, "values.model"),
        ({"saved_by": "code2wav 0"}, "values.saved_by"),
        ({"values": {}}, "values.saved_by"),
    ],
)
def test_a_saved_row_that_does_not_fit_is_refused(model: Token2Wav, change: dict[str, Any], field: str) -> None:
    code2wav, wanted = Code2Wav(model), prompt(20)
    saved = code2wav.save(steps_of(code2wav, code2wav.begin(wanted), 1))
    tensors = change.get("tensors", {name: change.get(name, tensor) for name, tensor in saved.tensors.items()})
    values = change.get("values", {name: change.get(name, value) for name, value in saved.values.items()})
    with pytest.raises(ModelError) as caught:
        code2wav.resume(wanted, tensors, values)
    assert caught.value.field == field


def test_the_fingerprint_tells_models_apart(model: Token2Wav, tiny_checkpoint: Path) -> None:
    again = load_token2wav(tiny_checkpoint, torch.device("cpu"))
    assert again.fingerprint == model.fingerprint
    again._dit.proj_out.bias += 1e-3
    assert weights_fingerprint(again._dit) != weights_fingerprint(model._dit)


# Memory


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
    assert done.stderr.count("trying each alone") <= 1  # none where it is the vocoder of the long row that lacks memory


# Clean-up


class Held:
    """Every row there was, as long as anything holds it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> None:
        self.loop = asyncio.get_running_loop()
        self.first_step = asyncio.Event()
        self.go_on = threading.Event()
        self._seen: weakref.WeakSet[MelRow] = weakref.WeakSet()
        step = MelDenoiser.step

        def noted(denoiser: MelDenoiser, rows: Sequence[MelRow]) -> None:
            self._seen.update(rows)
            self.loop.call_soon_threadsafe(self.first_step.set)
            if not self.go_on.wait(60):
                raise TimeoutError("nobody let the step go on")
            if fails:
                raise RuntimeError("the kernel is not implemented")
            step(denoiser, rows)

        monkeypatch.setattr(MelDenoiser, "step", noted)

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
        await asyncio.wait((tasks[2],))
        assert not tasks[0].done()  # its row is in the step that runs
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
    assert runner._entries == set()
    await runner.close()
    assert held.count() == 0
    assert [ref() for ref in waveforms] == [None] * len(waveforms)
    assert not thread.is_alive()
    assert model() is None
