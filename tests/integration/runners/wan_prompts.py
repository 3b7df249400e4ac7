"""Prompts for Wan's stages; rows are run by hand as those of Qwen-Image."""

from typing import Any

import torch

from workers.models.wan.parameters import AnimateParameters, FilmParameters, PlaybackParameters
from workers.models.wan.size import FilmSize
from workers.models.wan.tiny_checkpoint import HIDDEN
from workers.runners.diffusion.prompt import DiffusionPrompt


def states(tokens: int, seed: int) -> torch.Tensor:
    """Return embeddings [T, H] such as a text encoder's."""
    return torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(1000 + seed))


def film_prompt(tokens: int = 7, negative: int | None = 5, *, seed: int = 0, **parameters: Any) -> DiffusionPrompt:
    """Return a denoising's prompt of so many tokens of a description, and of a negative prompt."""
    tensors = {"prompt_embeds": states(tokens, seed)}
    if negative is not None:
        tensors["negative_prompt_embeds"] = states(negative, 77)
    given = {"width": 48, "height": 32, "num_frames": 5, "steps": 4} | parameters
    return DiffusionPrompt(tensors, {}, FilmParameters(**given), seed)


def animated(tokens: int = 7, negative: int | None = 5, *, seed: int = 0, **parameters: Any) -> DiffusionPrompt:
    """Return such a prompt of a video that begins with a picture, whose latents are random."""
    plain = film_prompt(tokens, negative, seed=seed)
    begin = torch.randn(16, 2, 4, 6, generator=torch.Generator().manual_seed(2000 + seed))
    steps = AnimateParameters(**{"steps": 4} | parameters)
    return DiffusionPrompt({**plain.tensors, "begin_latents": begin}, {}, steps, seed)


def latents_prompt(frames: int, height: int, width: int, *, seed: int = 0, fps: float = 16.0) -> DiffusionPrompt:
    """Return a decoding's prompt of random latents of a video's size."""
    size = FilmSize(frames, height, width)
    latents = torch.randn(16, *size.latents, generator=torch.Generator().manual_seed(seed))
    return DiffusionPrompt({"latents": latents}, {}, PlaybackParameters(fps=fps), seed)
