"""Prompts for code2wav, and what its runners start with, on the tiny checkpoint."""

from pathlib import Path
from typing import Any

import torch

from omni_jobs.pipelines.parameters import DiffusionParameters
from omni_jobs.pipelines.stage_config import EngineSettings
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig
from workers.stages.types import CodecPrompt, OmniModelRunnerOutput, Progress

FAST = DiffusionParameters(steps=3)


def prompt(
    length: int = 20, *, voice: str = "Chelsie", seed: int | None = None, parameters: DiffusionParameters = FAST
) -> CodecPrompt:
    codes = torch.randint(0, 8192, (length,), generator=torch.Generator().manual_seed(length))
    return CodecPrompt(codes, voice, parameters, length if seed is None else seed)


def args(checkpoint: Path, **engine: Any) -> OmniEngineArgs:
    return OmniEngineArgs(
        stage="code2wav",
        model=OmniModelConfig(checkpoint, "qwen2_5_omni", "code2wav", ("Chelsie", "Ethan")),
        device="cpu",
        device_index=None,
        max_in_flight=8,
        engine=EngineSettings(**engine),
    )


def waveform(output: OmniModelRunnerOutput) -> torch.Tensor:
    assert output.values == {"sampling_rate": 24_000}
    found: torch.Tensor = output.multimodal_outputs["waveform"]
    return found


def nothing(_: Progress) -> None:
    """A sink for progress nobody reads."""
