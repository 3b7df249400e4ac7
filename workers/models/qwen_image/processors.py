"""The input processors of Qwen-Image: ``describe`` and ``embeds2latents``."""

from __future__ import annotations

import torch

from omni_jobs.errors import ConfigError, PayloadCorrupt
from omni_jobs.payloads import Payload
from omni_jobs.pipelines.flows import FLOATS
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts import load_renderer
from workers.models.qwen_image.parameters import DrawParameters
from workers.models.qwen_image.prompts import QwenImagePromptRenderer
from workers.models.qwen_image.template import PREFIX_TOKENS
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.pooling.parameters import PoolingParameters
from workers.runners.pooling.prompt import PoolingPrompt
from workers.stages.engine_args import OmniModelConfig
from workers.stages.tensors import to_torch
from workers.stages.types import StageInput

NEGATIVE = "negative_prompt_embeds"


class DescribeProcessor:
    """Makes the text encoder's prompt of a job's description. Its name in a stage config is ``describe``."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Load the prompt renderer of the checkpoint. Raises ConfigError when there is no model."""
        if model is None:
            raise ConfigError("processor describe needs a model", field="processor", stage=stage.name)
        renderer = load_renderer(model.family, model.path)
        if not isinstance(renderer, QwenImagePromptRenderer):
            raise ConfigError("processor describe is Qwen-Image's own", field="processor", stage=stage.name)
        self._renderer: QwenImagePromptRenderer = renderer

    def __call__(self, stage_input: StageInput[PoolingParameters]) -> PoolingPrompt:
        """Return the token ids of description and negative prompt. Raises InvalidRequest, and ModelError."""
        parameters = stage_input.parameters
        negative = parameters.negative_prompt
        return PoolingPrompt(
            prompt_token_ids=self._renderer.encode(stage_input.request),
            parameters=parameters,
            seed=stage_input.seed,
            negative_token_ids=None if negative is None else self._renderer.encode_text(negative),
            drop=PREFIX_TOKENS,
        )


class Embeds2LatentsProcessor:
    """Makes the denoising's prompt of a payload ``embeds``. Its name in a stage config is ``embeds2latents``."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        self._upstream = input_of(stage, "embeds")

    def __call__(self, stage_input: StageInput[DrawParameters]) -> DiffusionPrompt[DrawParameters]:
        """Return the prompt: ``prompt_embeds`` [T, H], and ``negative_prompt_embeds`` [U, H] where there are some.

        Raises PayloadCorrupt naming the key and the field that is missing or wrong, and ModelError.
        """
        tensors = embeds_of(stage_input.upstream[self._upstream])
        return DiffusionPrompt(tensors, {}, stage_input.parameters, stage_input.seed, stage_input.previews)


def embeds_of(payload: Payload) -> dict[str, torch.Tensor]:
    """Return ``prompt_embeds`` [T, H] of a payload ``embeds``, and ``negative_prompt_embeds`` [U, H] if it has some.

    Raises PayloadCorrupt naming the key and the field that is missing or wrong.
    """
    if payload.prompt_embeds is None:
        raise PayloadCorrupt("missing", field="prompt_embeds", key=key_of(payload))
    tensors = {"prompt_embeds": to_torch(payload.prompt_embeds.embeds)}
    information = payload.additional_information
    if information is not None and NEGATIVE in information.tensors:
        tensors[NEGATIVE] = to_torch(information.tensor(NEGATIVE, dtypes=FLOATS, rank=2))
    return tensors


def input_of(stage: StageConfig, flow: str) -> str:
    """Return the name of the stage whose payload of this flow a stage takes."""
    return next(name for name, each in stage.inputs.items() if each == flow)


def key_of(payload: Payload) -> str | None:
    """Return the payload's key in the object store; None for one that came with the claim."""
    return getattr(payload.additional_information, "key", None)
