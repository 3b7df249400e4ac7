"""The input processors of GLM-Image: of the stages that encode source pictures, write image tokens, and denoise."""

from typing import Any

import torch

from omni_jobs.pipelines.stage_config import StageConfig
from workers.models.glm_image.grids import LARGEST, PIXELS, SMALLEST, grids_of
from workers.models.glm_image.parameters import DenoiseParameters, GenerateParameters
from workers.models.glm_image.prompts import GlmImagePromptRenderer, glyph_texts, text_of
from workers.models.glm_image.sources import Source, sources_of
from workers.models.pictures.source import bytes_of, decoded_sources
from workers.runners.ar.parameters import ArParameters
from workers.runners.ar.prompts import OmniTokensPrompt
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig, needed_model
from workers.stages.flow_processor import FlowProcessor
from workers.stages.tensors import to_torch
from workers.stages.types import StageInput

DEFAULT_SIDE = 1024
"""Pixels of a side that neither the job nor a source picture says."""


class Pictures2SourcesProcessor(FlowProcessor):
    """Decodes a message's pictures and leaves its text alone. Its name in a stage config is ``pictures2sources``.

    A picture is taken as all media are: upright by its EXIF, on white where it is transparent, the first of several
    frames, with 8 bits a channel; a colour profile is not applied.
    """

    def __call__(self, stage_input: StageInput[Any]) -> DiffusionPrompt[Any]:
        """Return the prompt, of ``pixels``, a list of uint8 [H, W, 3]: empty for a job that edits nothing.

        Raises InvalidRequest or RequestTooLarge naming a picture that does not decode, DecodersUnavailable, and
        ConfigError without a media wall.
        """
        pixels = [bytes_of(picture) for picture in decoded_sources(stage_input)]
        return DiffusionPrompt({"pixels": pixels}, {}, stage_input.parameters, stage_input.seed)


class Text2TokensProcessor(FlowProcessor):
    """Tokenizes the message and the sizes of the grids. Its name in a stage config is ``text2tokens``."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Load the checkpoint's tokenizer. Raise ConfigError when there is no model or one of its files is wrong."""
        super().__init__(stage, model)
        self._renderer = GlmImagePromptRenderer(needed_model(model, stage).path)

    def __call__(self, stage_input: StageInput[GenerateParameters]) -> OmniTokensPrompt:
        """Return the prompt, in which each source picture stands as the tokens that an earlier stage made of it.

        Its additional information is ``grids`` int64 [n, 2], rows and columns of each grid that is to be written, and
        ``sources`` int64 [m, 3]: where in the prompt the grid of a source picture begins, its rows and its columns.
        Exactly the tokens of the grids are generated, because a picture of fewer or more could not be drawn. Raise
        InvalidRequest for another number of pictures than were encoded, and PayloadCorrupt.
        """
        parameters = stage_input.parameters
        sources = _sources(self, stage_input)
        grids = grids_of(*_size(parameters, sources), edits=bool(sources))
        token_ids = [source.token_ids.flatten().tolist() for source in sources]
        prompt = self._renderer.encode_prompt(stage_input.request, token_ids, grids)
        shapes = [[begin, *source.token_ids.shape] for begin, source in zip(prompt.begins, sources, strict=True)]
        return OmniTokensPrompt(
            prompt_token_ids=prompt.ids,
            additional_information={
                "grids": torch.tensor(grids.written),
                "sources": torch.tensor(shapes, dtype=torch.int64).reshape(-1, 3),
            },
            parameters=ArParameters(
                temperature=parameters.temperature,
                top_p=parameters.top_p,
                top_k=parameters.top_k,
                max_tokens=grids.tokens,
                ignore_eos=True,
            ),
            seed=stage_input.seed,
            capture=stage_input.capture,
        )


class Tokens2LatentsProcessor(FlowProcessor):
    """Adds the message's glyph texts and source pictures to the image tokens.

    Its name in a stage config is ``tokens2latents``.
    """

    def __call__(self, stage_input: StageInput[DenoiseParameters]) -> DiffusionPrompt[DenoiseParameters]:
        """Return the prompt, of ``token_ids`` int64 [h * w], ``height``, ``width`` and ``glyph_texts``.

        Of the source pictures it has lists: ``source_ids``, each int64 [h, w], and ``source_latents``, each float
        [C, 4 h, 4 w]. Raise PayloadCorrupt naming a field that is missing or wrong.
        """
        information = self.information(stage_input, "image_tokens")
        token_ids = information.tensor("token_ids", dtypes=frozenset({"I64"}), rank=1)
        sources = _sources(self, stage_input)
        return DiffusionPrompt(
            {
                "token_ids": to_torch(token_ids).clone(),  # a copy lets the payload's memory be freed
                "source_ids": [source.token_ids for source in sources],
                "source_latents": [source.latents for source in sources],
            },
            {
                "height": information.value("height", int),
                "width": information.value("width", int),
                "glyph_texts": glyph_texts(text_of(stage_input.request)),
            },
            stage_input.parameters,
            stage_input.seed,
            stage_input.previews,
        )


def _sources(processor: FlowProcessor, stage_input: StageInput[Any]) -> list[Source]:
    """Return the source pictures that an earlier stage has encoded; none where the stage has no such input."""
    if not processor.takes("source_pictures"):
        return []
    return sources_of(processor.information(stage_input, "source_pictures"))


def _size(parameters: GenerateParameters, sources: list[Source]) -> tuple[int, int]:
    """Return height and width in pixels of the picture: as the job says, or as the first source picture has it."""
    height = width = DEFAULT_SIDE
    if sources:
        height, width = (min(max(side * PIXELS, SMALLEST), LARGEST) for side in sources[0].token_ids.shape)
    return parameters.height or height, parameters.width or width
