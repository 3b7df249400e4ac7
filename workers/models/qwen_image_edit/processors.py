"""The input processors of Qwen-Image-Edit: ``instruct``, ``scale`` and ``edit``."""

from __future__ import annotations

from omni_jobs.errors import ConfigError, ModelError, PayloadCorrupt
from omni_jobs.payloads import Payload
from omni_jobs.pipelines.flows import FLOATS
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts import load_renderer
from workers.models.pictures.source import bytes_of, decoded_sources, scaled
from workers.models.qwen_image.parameters import EditParameters
from workers.models.qwen_image.processors import embeds_of, input_of, key_of
from workers.models.qwen_image.size import Size
from workers.models.qwen_image_edit.parameters import SourcesParameters
from workers.models.qwen_image_edit.prompts import QwenImageEditPromptRenderer
from workers.models.qwen_image_edit.sizes import default_size, size_of_area
from workers.models.qwen_image_edit.template import PREFIX_TOKENS
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.pooling.parameters import PoolingParameters
from workers.runners.pooling.prompt import PoolingPrompt
from workers.stages.engine_args import OmniModelConfig
from workers.stages.tensors import to_torch
from workers.stages.types import StageInput


class InstructProcessor:
    """Makes the text encoder's prompt of pictures and instruction. Its name in a stage config is ``instruct``."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Load the prompt renderer of the checkpoint. Raises ConfigError when there is no model."""
        if model is None:
            raise ConfigError("processor instruct needs a model", field="processor", stage=stage.name)
        renderer = load_renderer(model.family, model.path)
        if not isinstance(renderer, QwenImageEditPromptRenderer):
            raise ConfigError("processor instruct is Qwen-Image-Edit's own", field="processor", stage=stage.name)
        self._renderer: QwenImageEditPromptRenderer = renderer

    def __call__(self, stage_input: StageInput[PoolingParameters]) -> PoolingPrompt:
        """Return the token ids of instruction and negative prompt, with the pictures as the text encoder sees them.

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
            drop=PREFIX_TOKENS,
            pictures=[scaled(each, *self._renderer.seen_as(size)) for each, size in zip(pictures, sizes, strict=True)],
            picture_tokens=self._renderer.picture_tokens(sizes),
        )


class ScaleProcessor:
    """Makes the VAE's prompt of a job's pictures. Its name in a stage config is ``scale``."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        pass

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


class EditProcessor:
    """Makes the denoising's prompt of the payloads ``embeds`` and ``source_tokens``.

    Its name in a stage config is ``edit``.
    """

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        self._embeds, self._sources = input_of(stage, "embeds"), input_of(stage, "source_tokens")

    def __call__(self, stage_input: StageInput[EditParameters]) -> DiffusionPrompt[EditParameters]:
        """Return the prompt: embeddings as ``embeds2latents`` does, ``source_tokens`` [S, 64] and ``source_sizes``.

        Sides of the result that the job leaves open are those of the payload's ``default_size``. Raises PayloadCorrupt
        naming the key and the field that is missing or wrong, and ModelError.
        """
        parameters = stage_input.parameters
        payload = stage_input.upstream[self._sources]
        information = payload.additional_information
        if information is None:
            raise PayloadCorrupt("missing", field="additional_information", key=key_of(payload))
        default = _default_size(payload)
        return DiffusionPrompt(
            {
                **embeds_of(stage_input.upstream[self._embeds]),
                "source_tokens": to_torch(information.tensor("source_tokens", dtypes=FLOATS, rank=2)),
            },
            {"source_sizes": information.value("source_sizes", list)},
            parameters.model_copy(update={**default._asdict(), **parameters.model_dump(exclude_none=True)}),
            stage_input.seed,
            stage_input.previews,
        )


def _default_size(payload: Payload) -> Size:
    values = {} if payload.additional_information is None else payload.additional_information.values
    sides = values.get("default_size")
    try:
        height, width = sides if isinstance(sides, list) and len(sides) == 2 else (None, None)
        return Size.of({"height": height, "width": width})
    except ModelError as error:
        raise PayloadCorrupt(error.message, field="values.default_size", key=key_of(payload)) from None
