"""The input processors of Qwen-Image: of pipelines that draw, and of those that edit."""

from __future__ import annotations

import torch

from omni_jobs.errors import ConfigError, ModelError, PayloadCorrupt
from omni_jobs.payloads import AdditionalInformationPayload, Payload
from omni_jobs.pipelines.flows import FLOATS
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.renderers import load_renderer
from workers.models.pictures.source import bytes_of, decoded_sources, scaled
from workers.models.qwen_image.parameters import DrawParameters, EditParameters, SourcesParameters
from workers.models.qwen_image.prompts import QwenImagePromptRenderer
from workers.models.qwen_image.size import Size, default_size, size_of_area
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.pooling.parameters import PoolingParameters
from workers.runners.pooling.prompt import PoolingPrompt
from workers.stages.engine_args import OmniModelConfig, needed_model
from workers.stages.flow_processor import FlowProcessor
from workers.stages.tensors import to_torch
from workers.stages.types import StageInput

NEGATIVE = "negative_prompt_embeds"


class DescribeProcessor:
    """Makes the text encoder's prompt of a job's text and pictures.

    Its name in a stage config is ``describe``, and ``instruct`` where the pipeline edits.
    """

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Load the prompt renderer of the checkpoint. Raises ConfigError when there is no model."""
        model = needed_model(model, stage)
        renderer = load_renderer(model.family, model.path)
        if not isinstance(renderer, QwenImagePromptRenderer):
            message = f"processor {stage.processor} is Qwen-Image's own"
            raise ConfigError(message, field="processor", stage=stage.name)
        self._renderer: QwenImagePromptRenderer = renderer

    def __call__(self, stage_input: StageInput[PoolingParameters]) -> PoolingPrompt:
        """Return the token ids of text and negative prompt, with the pictures as the text encoder sees them.

        Raises InvalidRequest, RequestTooLarge and DecodersUnavailable for pictures, and ModelError.
        """
        parameters = stage_input.parameters
        pictures = decoded_sources(stage_input)
        sizes = [Size(picture.height, picture.width) for picture in pictures]
        negative = parameters.negative_prompt
        return PoolingPrompt(
            prompt_token_ids=self._renderer.encode(stage_input.request),
            parameters=parameters,
            seed=stage_input.seed,
            negative_token_ids=None if negative is None else self._renderer.encode_text(negative, len(pictures)),
            drop=self._renderer.template.prefix_tokens,
            pictures=[scaled(each, *self._renderer.seen_as(size)) for each, size in zip(pictures, sizes, strict=True)],
            picture_tokens=self._renderer.picture_tokens(sizes),
        )


class Embeds2LatentsProcessor(FlowProcessor):
    """Makes the denoising's prompt of a payload ``embeds``. Its name in a stage config is ``embeds2latents``."""

    def __call__(self, stage_input: StageInput[DrawParameters]) -> DiffusionPrompt[DrawParameters]:
        """Return the prompt: ``prompt_embeds`` [T, H], and ``negative_prompt_embeds`` [U, H] where there are some.

        Raises PayloadCorrupt naming the key and the field that is missing or wrong, and ModelError.
        """
        tensors = _embeds_of(self.payload(stage_input, "embeds"))
        return DiffusionPrompt(tensors, {}, stage_input.parameters, stage_input.seed, stage_input.previews)


class ScaleProcessor(FlowProcessor):
    """Makes the VAE's prompt of a job's pictures. Its name in a stage config is ``scale``."""

    def __call__(self, stage_input: StageInput[SourcesParameters]) -> DiffusionPrompt[SourcesParameters]:
        """Return the prompt: ``pictures``, and in ``default_size`` the size of an edit that names none.

        Raises InvalidRequest, RequestTooLarge and DecodersUnavailable for pictures, and ModelError.
        """
        parameters = stage_input.parameters
        pictures = decoded_sources(stage_input)
        if not pictures:
            raise ModelError("there are no pictures to edit", field="messages")
        sizes = [Size(picture.height, picture.width) for picture in pictures]
        pixels = [
            bytes_of(scaled(each, *size_of_area(parameters.pixels, size)))
            for each, size in zip(pictures, sizes, strict=True)
        ]
        values = {"default_size": list(default_size(sizes[-1]))}
        return DiffusionPrompt({"pictures": pixels}, values, parameters, stage_input.seed)


class EditProcessor(FlowProcessor):
    """Makes the denoising's prompt of the payloads ``embeds`` and ``source_tokens``.

    Its name in a stage config is ``edit``.
    """

    def __call__(self, stage_input: StageInput[EditParameters]) -> DiffusionPrompt[EditParameters]:
        """Return the prompt: embeddings as ``embeds2latents`` does, ``source_tokens`` [S, 64] and ``source_sizes``.

        Sides of the result that the job leaves open are those of the payload's ``default_size``. Raises PayloadCorrupt
        naming the key and the field that is missing or wrong, and ModelError.
        """
        parameters = stage_input.parameters
        information = self.information(stage_input, "source_tokens")
        default = _default_size(information)
        return DiffusionPrompt(
            {
                **_embeds_of(self.payload(stage_input, "embeds")),
                "source_tokens": to_torch(information.tensor("source_tokens", dtypes=FLOATS, rank=2)),
            },
            {"source_sizes": information.value("source_sizes", list)},
            parameters.model_copy(update={**default._asdict(), **parameters.model_dump(exclude_none=True)}),
            stage_input.seed,
            stage_input.previews,
        )


def _embeds_of(payload: Payload) -> dict[str, torch.Tensor]:
    """Return ``prompt_embeds`` [T, H] of a payload ``embeds``, and ``negative_prompt_embeds`` [U, H] if it has some.

    Raises PayloadCorrupt naming the key and the field that is missing or wrong.
    """
    if payload.prompt_embeds is None:
        raise PayloadCorrupt("missing", field="prompt_embeds", key=payload.key)
    tensors = {"prompt_embeds": to_torch(payload.prompt_embeds.embeds)}
    information = payload.additional_information
    if information is not None and NEGATIVE in information.tensors:
        tensors[NEGATIVE] = to_torch(information.tensor(NEGATIVE, dtypes=FLOATS, rank=2))
    return tensors


def _default_size(information: AdditionalInformationPayload) -> Size:
    sides = information.values.get("default_size")
    try:
        height, width = sides if isinstance(sides, list) and len(sides) == 2 else (None, None)
        return Size.of({"height": height, "width": width})
    except ModelError as error:
        raise PayloadCorrupt(error.message, field="values.default_size", key=information.key) from None
