"""The input processor ``latents2pixels``: it makes the VAE's prompt of denoised latents."""

from typing import Any

from omni_jobs.pipelines.flows import FLOATS
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.flow_processor import FlowProcessor
from workers.stages.tensors import to_torch
from workers.stages.types import StageInput


class Latents2PixelsProcessor(FlowProcessor):
    """Hands the latents on. Its name in a stage config is ``latents2pixels``."""

    rank = 3  # of a picture's latents [C, h, w]

    def __call__(self, stage_input: StageInput[Any]) -> DiffusionPrompt[Any]:
        """Return the prompt, of float ``latents``. Raise PayloadCorrupt naming what is missing or wrong."""
        latents = self.information(stage_input, "latents").tensor("latents", dtypes=FLOATS, rank=self.rank)
        return DiffusionPrompt({"latents": to_torch(latents)}, {}, stage_input.parameters, stage_input.seed)
