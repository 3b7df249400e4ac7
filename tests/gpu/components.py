"""A prompt for each component that runs on the diffusion engine, and the component's runner on a device."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from omni_jobs.pipelines.declarations import family
from omni_jobs.pipelines.parameters import StageParameters
from omni_jobs.pipelines.plugins import named_class
from workers.models.qwen2_5_omni.tiny_checkpoint import SPEAKERS
from workers.models.wan.tiny_checkpoint import HIDDEN as FILM_TEXT
from workers.runners.diffusion.engine_settings import DiffusionEngine
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig

_TEXT = 128  # width of the tiny text encoder's rows


@dataclass(frozen=True)
class Component:
    """One component, its prompts, and the tensor of its output that is compared."""

    family: str
    name: str
    output: str
    tensors: Callable[[torch.Generator], Mapping[str, Any]]
    values: Mapping[str, Any]
    parameters: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.family}-{self.name}"

    def prompt(self, seed: int, **parameters: Any) -> DiffusionPrompt:
        """Return a prompt of this seed; ``parameters`` replace its own."""
        declared = family(self.family).components[self.name].parameters
        kind = StageParameters if declared is None else named_class(declared, StageParameters)
        tensors = self.tensors(torch.Generator().manual_seed(seed))
        return DiffusionPrompt(dict(tensors), dict(self.values), kind(**{**self.parameters, **parameters}), seed)

    def args(self, checkpoint: Path, device: torch.device, spool: Path | None = None, **engine: Any) -> OmniEngineArgs:
        """Return what its runner is made of."""
        voices = SPEAKERS if self.name == "code2wav" else ()
        model = OmniModelConfig(checkpoint, self.family, self.name, voices)
        kind: Any = device.type
        return OmniEngineArgs(self.name, model, kind, device.index, 8, DiffusionEngine(**engine), spool_dir=spool)


def _embeds(generator: torch.Generator, width: int = _TEXT) -> dict[str, Any]:
    return {
        "prompt_embeds": torch.randn(9, width, generator=generator),
        "negative_prompt_embeds": torch.randn(5, width, generator=generator),
    }


def _edit(generator: torch.Generator) -> dict[str, Any]:
    return _embeds(generator) | {"source_tokens": torch.randn(16, 64, generator=generator)}


def _pictures(generator: torch.Generator) -> list[torch.Tensor]:
    return [torch.randint(0, 256, (64, 96, 3), generator=generator, dtype=torch.uint8)]


_SIZE = {"width": 64, "height": 64}
QWEN_IMAGE = Component("qwen_image", "denoise", "latents", _embeds, {}, {**_SIZE, "steps": 6})
CODE2WAV = Component(
    "qwen2_5_omni",
    "code2wav",
    "waveform",
    lambda generator: {"codes": torch.randint(0, 8192, (40,), generator=generator)},
    {"voice": SPEAKERS[0]},
    {"steps": 4},
)
QWEN_IMAGE_DECODE = Component(
    "qwen_image", "decode", "pixels", lambda generator: {"latents": torch.randn(16, 8, 12, generator=generator)}, {}, {}
)
COMPONENTS = (
    QWEN_IMAGE,
    QWEN_IMAGE_DECODE,
    Component("qwen_image_edit", "sources", "source_tokens", lambda g: {"pictures": _pictures(g)}, {}, {}),
    Component("qwen_image_edit", "denoise", "latents", _edit, {"source_sizes": [[64, 64]]}, {**_SIZE, "steps": 6}),
    Component(
        "glm_image",
        "denoise",
        "latents",
        lambda generator: {"token_ids": torch.randint(0, 16_384, (6,), generator=generator)},
        {"height": 64, "width": 96, "glyph_texts": ["Open", "Café 24"]},
        {"steps": 6},
    ),
    Component(
        "glm_image",
        "decode",
        "pixels",
        lambda generator: {"latents": torch.randn(16, 8, 12, generator=generator)},
        {},
        {},
    ),
    Component("glm_image", "encode", "latents", lambda g: {"pixels": _pictures(g)}, {}, {}),
    CODE2WAV,
    Component(
        "qwen3_omni",
        "code2wav",
        "waveform",
        lambda generator: {"frames": torch.randint(0, 256, (40, 16), generator=generator)},
        {},
        {"chunk_frames": 16, "context_frames": 4},
    ),
    Component(
        "wan",
        "denoise",
        "latents",
        lambda generator: _embeds(generator, FILM_TEXT),
        {},
        {**_SIZE, "num_frames": 9, "steps": 6},
    ),
    Component(
        "wan",
        "decode",
        "pixels",
        lambda generator: {"latents": torch.randn(16, 3, 8, 12, generator=generator)},
        {},
        {},
    ),
)
