"""The input processor ``latents2pixels``: it makes the VAE's prompt of denoised latents."""

from typing import Any

from omni_jobs.pipelines.flows import FLOATS
from omni_jobs.pipelines.stage_config import StageConfig
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig
from workers.stages.tensors import to_torch
from workers.stages.types import StageInput


class Latents2PixelsProcessor:
    """Hands the latents on. Its name in a stage config is ``latents2pixels``."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Note which stage denoises."""
        self._denoise = next(name for name, flow in stage.inputs.items() if flow == "latents")

    def __call__(self, stage_input: StageInput[Any]) -> DiffusionPrompt[Any]:
        """Return the prompt, of ``latents`` float [C, h, w]. Raise PayloadCorrupt naming what is missing or wrong."""
        information = stage_input.information(self._denoise)
        latents = information.tensor("latents", dtypes=FLOATS, rank=3)
        return DiffusionPrompt({"latents": to_torch(latents)}, {}, stage_input.parameters, stage_input.seed)
