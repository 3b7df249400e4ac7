"""Prompts for code2wav, and what its runners start with, on the tiny checkpoint."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from omni_jobs.errors import StageError
from workers.models.qwen2_5_omni.code2wav import Code2Wav
from workers.models.qwen2_5_omni.denoising import CodecRequest
from workers.models.qwen2_5_omni.parameters import OdeParameters
from workers.models.qwen2_5_omni.token2wav import Token2Wav
from workers.runners.diffusion.engine_settings import DiffusionEngine
from workers.runners.diffusion.gpu_diffusion_model_runner import GPUDiffusionModelRunner
from workers.runners.diffusion.model import Cost
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.step_budget import StepBudget
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig
from workers.stages.types import OmniModelRunnerOutput, Progress

FAST = OdeParameters(steps=3)
STEP_FRAMES = 1024  # so that rows meet, which code2wav's own budget on a CPU keeps apart


def prompt(
    length: int = 20, *, voice: str = "Chelsie", seed: int | None = None, parameters: OdeParameters = FAST
) -> DiffusionPrompt:
    codes = torch.randint(0, 8192, (length,), generator=torch.Generator().manual_seed(length))
    return codec_prompt(codes, voice, parameters, length if seed is None else seed)


def codec_prompt(codes: torch.Tensor, voice: str, parameters: OdeParameters, seed: int) -> DiffusionPrompt:
    return DiffusionPrompt({"codes": codes}, {"voice": voice}, parameters, seed)


def codec_request(prompt: DiffusionPrompt) -> CodecRequest:
    codes = prompt.tensors["codes"]
    assert isinstance(codes, torch.Tensor)
    return CodecRequest(codes, prompt.values["voice"], prompt.seed)


def args(checkpoint: Path, **engine: Any) -> OmniEngineArgs:
    return OmniEngineArgs(
        stage="code2wav",
        model=OmniModelConfig(checkpoint, "qwen2_5_omni", "code2wav", ("Chelsie", "Ethan")),
        device="cpu",
        device_index=None,
        max_in_flight=8,
        engine=DiffusionEngine(**{"max_batch_cost": STEP_FRAMES} | engine),
    )


def waveform(output: OmniModelRunnerOutput) -> torch.Tensor:
    assert output.values == {"sampling_rate": 24_000}
    found: torch.Tensor = output.multimodal_outputs["waveform"]
    return found


def nothing(_: Progress) -> None:
    """A sink for progress nobody reads."""


class Row:
    """A row's caller that keeps the result; after ``leaves_after`` steps it is no longer wanted."""

    def __init__(self, prompt: DiffusionPrompt, cost: Cost, leaves_after: int = 1 << 30) -> None:
        self.prompt = prompt
        self.cost = cost
        self.seen: list[int] = []  # steps done, as they were reported
        self.result: OmniModelRunnerOutput | StageError | None = None
        self._leaves_after = leaves_after

    @property
    def done(self) -> int:
        return self.seen[-1] if self.seen else 0

    @property
    def wanted(self) -> bool:
        return self.result is None and self.done < self._leaves_after

    def report(self, done: int, total: int) -> None:
        assert total == self.cost.steps + 1
        self.seen.append(done)

    def show(self, picture: torch.Tensor) -> None:
        raise AssertionError("code2wav has no previews")

    def settle(self, result: OmniModelRunnerOutput | StageError) -> None:
        assert self.result is None
        self.result = result

    def waveform(self) -> torch.Tensor:
        assert isinstance(self.result, OmniModelRunnerOutput), self.result
        return waveform(self.result)


def run_together(
    model: Token2Wav,
    prompts: Sequence[DiffusionPrompt],
    leaves_after: Mapping[int, int] | None = None,
    *,
    arrives: Mapping[int, int] | None = None,
    budget: StepBudget | None = None,
) -> list[Row]:
    """Run prompts in one engine, each from the tick that ``arrives`` says (0) to its own step of ``leaves_after``."""
    code2wav = Code2Wav(model)
    runner = GPUDiffusionModelRunner(code2wav, model.device, budget or StepBudget(STEP_FRAMES, 8))
    leaves_after, arrives = leaves_after or {}, arrives or {}
    rows = [Row(prompt, code2wav.check(prompt), leaves_after.get(n, 1 << 30)) for n, prompt in enumerate(prompts)]
    coming = sorted(range(len(rows)), key=lambda n: arrives.get(n, 0))
    tick, busy = 0, True
    while busy or coming:
        while coming and arrives.get(coming[0], 0) <= tick:
            runner.add(rows[coming.pop(0)])
        busy = runner.execute_model()
        tick += 1
    return rows
