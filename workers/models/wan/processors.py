"""The input processors of Wan."""

from __future__ import annotations

from typing import Any

import torch

from omni_jobs.errors import ConfigError, ModelError
from omni_jobs.pipelines.flows import FLOATS
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.renderers import load_renderer
from workers.models.pictures.latents2pixels import Latents2PixelsProcessor
from workers.models.pictures.source import bytes_of, decoded_sources, scaled
from workers.models.wan.parameters import (
    AnimateParameters,
    BeginParameters,
    FilmParameters,
    TextParameters,
)
from workers.models.wan.prompts import WanPromptRenderer
from workers.models.wan.size import FilmSize
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig, needed_model
from workers.stages.flow_processor import FlowProcessor
from workers.stages.tensors import to_torch
from workers.stages.types import StageInput

_NEGATIVE = "negative_prompt_embeds"


class NarrateProcessor:
    """Makes the text encoder's prompt of a job's texts. Its name in a stage config is ``narrate``."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Load the prompt renderer of the checkpoint. Raises ConfigError when there is no model."""
        model = needed_model(model, stage)
        renderer = load_renderer(model.family, model.path)
        if not isinstance(renderer, WanPromptRenderer):
            raise ConfigError(f"processor {stage.processor} is Wan's own", field="processor", stage=stage.name)
        self._renderer: WanPromptRenderer = renderer

    def __call__(self, stage_input: StageInput[TextParameters]) -> DiffusionPrompt[TextParameters]:
        """Return the prompt: ``prompt_ids`` int64 [T], and ``negative_prompt_ids`` unless the parameter is null."""
        negative = stage_input.parameters.negative_prompt
        ids = {"prompt_ids": torch.tensor(self._renderer.encode(stage_input.request))}
        if negative is not None:
            ids["negative_prompt_ids"] = torch.tensor(self._renderer.encode_text(negative))
        return DiffusionPrompt(ids, {}, stage_input.parameters, stage_input.seed)


class TextStatesProcessor(FlowProcessor):
    """The base of those that take the text encoder's states."""

    def texts(self, stage_input: StageInput[Any]) -> dict[str, torch.Tensor]:
        """Return ``prompt_embeds`` [T, H], and ``negative_prompt_embeds`` [U, H] where there are some.

        Raises PayloadCorrupt naming the key and the field that is missing or wrong.
        """
        states = self.information(stage_input, "text_states")
        names = ["prompt_embeds", *([_NEGATIVE] if _NEGATIVE in states.tensors else [])]
        return {name: to_torch(states.tensor(name, dtypes=FLOATS, rank=2)) for name in names}


class FilmProcessor(TextStatesProcessor):
    """Makes the denoising's prompt of a payload ``text_states``. Its name in a stage config is ``film``."""

    def __call__(self, stage_input: StageInput[FilmParameters]) -> DiffusionPrompt[FilmParameters]:
        """Return the prompt of the embeddings. Raises PayloadCorrupt as ``texts`` does."""
        texts = self.texts(stage_input)
        return DiffusionPrompt(texts, {}, stage_input.parameters, stage_input.seed, stage_input.previews)


class BeginProcessor(FlowProcessor):
    """Makes the VAE's prompt of the picture that a video begins with. Its name in a stage config is ``begin``."""

    def __call__(self, stage_input: StageInput[BeginParameters]) -> DiffusionPrompt[BeginParameters]:
        """Return the prompt: ``picture`` uint8 [H, W, 3] of the video's sides, and its ``frames``.

        Raises InvalidRequest, RequestTooLarge and DecodersUnavailable for the picture, and ModelError.
        """
        pictures = decoded_sources(stage_input)
        if len(pictures) != 1:
            raise ModelError(f"one picture is due, not {len(pictures)}", field="messages")
        size = FilmSize.of_picture(stage_input.parameters, pictures[0].height, pictures[0].width)
        pixels = bytes_of(scaled(pictures[0], size.height, size.width))
        return DiffusionPrompt({"picture": pixels}, {"frames": size.frames}, stage_input.parameters, stage_input.seed)


class AnimateProcessor(TextStatesProcessor):
    """Makes the denoising's prompt of payloads ``text_states`` and ``begin_latents``.

    Its name in a stage config is ``animate``.
    """

    def __call__(self, stage_input: StageInput[AnimateParameters]) -> DiffusionPrompt[AnimateParameters]:
        """Return the prompt: embeddings as ``film`` does, and ``begin_latents`` [C, F, h, w].

        Raises PayloadCorrupt naming the key and the field that is missing or wrong.
        """
        begin = self.information(stage_input, "begin_latents").tensor("begin_latents", dtypes=FLOATS, rank=4)
        tensors = {**self.texts(stage_input), "begin_latents": to_torch(begin)}
        return DiffusionPrompt(tensors, {}, stage_input.parameters, stage_input.seed, stage_input.previews)


class Latents2FramesProcessor(Latents2PixelsProcessor):
    """Hands the latents of a video on. Its name in a stage config is ``latents2frames``."""

    rank = 4  # [C, F, h, w]
