"""The diffusion model: noise → ten steps → a picture."""

from collections.abc import Callable, Iterator, Sequence

import torch
from safetensors.torch import load_file

from omni_jobs.errors import ConfigError, ModelError
from omni_jobs.prompts.checkpoint_files import positive, read_json
from pastel.network import CHANNELS, SCALE, PastelNetwork
from pastel.parameters import PastelParameters
from workers.runners.diffusion.model import Cost, RowOutput
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig

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


class Pastel:
    """A ``DiffusionModel``. A prompt has a value ``text``."""

    max_batch_cost = 1 << 16  # latents

    def __init__(self, network: PastelNetwork) -> None:
        self.network = network

    def check(self, prompt: DiffusionPrompt) -> Cost:
        """Return the latents that the picture takes. Raises ModelError naming what the model cannot take."""
        text, parameters = _request(prompt)
        if len(text) > LONGEST_TEXT:
            raise ModelError(f"{len(text)} characters; at most {LONGEST_TEXT} are drawn", field="text")
        latents = parameters.width * parameters.height // SCALE**2
        # The rows of a batch are one tensor and take the same steps. Each has its own guidance.
        return Cost(latents, parameters.steps, (parameters.width, parameters.height, parameters.steps))

    def begin(self, prompts: Sequence[DiffusionPrompt]) -> "PastelBatch":
        """Return a batch of pictures of one size and as many steps."""
        return PastelBatch(self.network, prompts)


class PastelBatch:
    """A ``DiffusionBatch``: Euler's method with classifier-free guidance."""

    def __init__(self, network: PastelNetwork, prompts: Sequence[DiffusionPrompt]) -> None:
        requests = [_request(prompt) for prompt in prompts]
        first = requests[0][1]
        shape = (CHANNELS, first.height // SCALE, first.width // SCALE)
        # Each row's noise comes of its own seed, and from the CPU, so that all devices draw the same picture.
        noise = torch.stack([_noise(prompt.seed, shape) for prompt in prompts])
        scales = torch.tensor([parameters.guidance_scale for _, parameters in requests], dtype=torch.float64)
        self._network = network
        self._latents = noise.to(network.time.device)
        self._texts = network.texts([text for text, _ in requests])
        self._scales = scales.to(network.time.device)[:, None, None, None]
        self.steps = first.steps
        self.steps_done = 0

    @property
    def done(self) -> bool:
        return self.steps_done == self.steps

    def step(self) -> None:
        time = self.steps_done / self.steps
        plain = self._network.velocity(self._latents, time, torch.zeros_like(self._texts))
        guided = self._network.velocity(self._latents, time, self._texts)
        self._latents = self._latents + (plain + self._scales * (guided - plain)) / self.steps
        self.steps_done += 1

    def keep(self, rows: Sequence[int]) -> None:
        kept = list(rows)
        self._latents, self._texts, self._scales = self._latents[kept], self._texts[kept], self._scales[kept]

    def finish(self, wanted: Callable[[int], bool]) -> Iterator[tuple[int, RowOutput]]:
        """Yield each row's ``pixels`` uint8 [H, W, 3]."""
        for row, latents in enumerate(self._latents):
            if wanted(row):
                yield row, RowOutput({"pixels": self._network.pixels(latents)})


def _request(prompt: DiffusionPrompt) -> tuple[str, PastelParameters]:
    text = prompt.values.get("text")
    if not isinstance(text, str) or not text:
        raise ModelError("there is no text", field="text")
    if not isinstance(prompt.parameters, PastelParameters):
        raise ModelError("a picture has parameters of its own", field="parameters")
    return text, prompt.parameters


def _noise(seed: int, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
