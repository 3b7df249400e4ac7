"""The diffusion model: noise → ten steps → a picture."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file

from omni_jobs.errors import ConfigError, ModelError
from omni_jobs.prompts.checkpoint_files import positive, read_json
from pastel.network import CHANNELS, SCALE, PastelNetwork, as_pixels
from pastel.parameters import PastelParameters
from workers.runners.diffusion.model import Cost, RowOutput
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.saved_row import SavedRow, weights_fingerprint
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import TensorTree

__all__ = ["Pastel", "load_pastel"]

LONGEST_TEXT = 2000  # characters


def load_pastel(model: OmniModelConfig, device: torch.device, dtype: str | None) -> "Pastel":
    """Return the model of a checkpoint. Raises ConfigError naming the file that does not fit."""
    config, weights = model.path / "config.json", model.path / "model.safetensors"
    network = PastelNetwork(positive(read_json(config), ("width",), str(config)))
    try:
        network.load_state_dict(load_file(weights))
    except (RuntimeError, OSError) as error:
        raise ConfigError(f"cannot be loaded: {error}", file=str(weights)) from error
    # float64, so that the last bits, which depend on a row's company, never change a pixel.
    return Pastel(network.to(device, torch.float64))


@dataclass(eq=False)
class Picture:
    """A ``DiffusionRow``: one picture under way."""

    parameters: PastelParameters
    seed: int
    text: torch.Tensor  # [width]
    latents: torch.Tensor  # [4, h, w]
    steps_done: int = 0


class Pastel:
    """A ``ResumableModel`` and a ``PreviewingModel``. A prompt has a value ``text``."""

    max_batch_cost = 1 << 16  # latents

    def __init__(self, network: PastelNetwork) -> None:
        self.network = network
        self._fingerprint = weights_fingerprint(network)
        self._colours = network.mean_colours()

    def check(self, prompt: DiffusionPrompt[PastelParameters]) -> Cost:
        """Return the latents that the picture takes. Raises ModelError naming what the model cannot take."""
        text, parameters = _request(prompt)
        if len(text) > LONGEST_TEXT:
            raise ModelError(f"{len(text)} characters; at most {LONGEST_TEXT} are drawn", field="text")
        latents = parameters.width * parameters.height // SCALE**2
        # The latents of a step's rows are one tensor. Each row has its own steps and guidance.
        return Cost(latents, parameters.steps, group=(parameters.width, parameters.height))

    def begin(self, prompt: DiffusionPrompt[PastelParameters]) -> Picture:
        """Return a picture that is noise yet."""
        text, parameters = _request(prompt)
        noise = _noise(prompt.seed, (CHANNELS, parameters.height // SCALE, parameters.width // SCALE))
        latents = noise.to(self.network.time.device)
        return Picture(parameters, prompt.seed, self.network.text(text), latents)

    def step(self, rows: Sequence[Picture]) -> None:
        """Take one step of Euler's method with classifier-free guidance, for pictures of one size."""
        latents, texts = torch.stack([row.latents for row in rows]), torch.stack([row.text for row in rows])
        steps = latents.new_tensor([row.parameters.steps for row in rows])
        times = latents.new_tensor([row.steps_done for row in rows]) / steps
        scales = latents.new_tensor([row.parameters.guidance_scale for row in rows])
        plain = self.network.velocity(latents, times, torch.zeros_like(texts))
        guided = self.network.velocity(latents, times, texts)
        change = plain + scales[:, None, None, None] * (guided - plain)
        latents = latents + change / steps[:, None, None, None]
        for row, moved in zip(rows, latents, strict=True):
            row.latents = moved
            row.steps_done += 1

    def finish(self, rows: Sequence[Picture], wanted: Callable[[int], bool]) -> Iterator[tuple[int, RowOutput]]:
        """Yield each row's ``pixels`` uint8 [H, W, 3]."""
        for number, row in enumerate(rows):
            if wanted(number):
                yield number, RowOutput({"pixels": self.network.pixels(row.latents)})

    def save(self, row: Picture) -> RowOutput:
        """Return what another process needs beside the prompt to go on with this row."""
        values = {"steps_done": row.steps_done, **self._origin(row)}
        return RowOutput({"latents": row.latents.to("cpu", copy=True)}, values)

    def resume(
        self, prompt: DiffusionPrompt[PastelParameters], tensors: Mapping[str, TensorTree], values: Mapping[str, Any]
    ) -> Picture:
        """Return the row that was saved. Raises ModelError naming what does not fit."""
        row, saved = self.begin(prompt), SavedRow(tensors, values)
        saved.check(**self._origin(row))
        row.latents = saved.tensor("latents", tuple(row.latents.shape), row.latents.dtype).to(row.latents.device)
        row.steps_done = saved.steps_done(row.parameters.steps)
        return row

    def _origin(self, row: Picture) -> dict[str, Any]:
        return {"model": self._fingerprint, "parameters": row.parameters.model_dump(mode="json"), "seed": row.seed}

    def preview(self, row: Picture) -> torch.Tensor:
        """Return a picture of one pixel for each latent, uint8 [h, w, 3]."""
        return as_pixels(self._colours(row.latents))


def _request(prompt: DiffusionPrompt[PastelParameters]) -> tuple[str, PastelParameters]:
    text = prompt.values.get("text")
    if not isinstance(text, str) or not text:
        raise ModelError("there is no text", field="text")
    return text, prompt.parameters


def _noise(seed: int, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
