"""The input processor ``text2tokens``: it makes the language model's prompt of a job's message and picture size."""

import torch

from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.stage_config import StageConfig
from workers.models.glm_image.grids import LARGEST, PIXELS, SMALLEST, grids_of
from workers.models.glm_image.parameters import GenerateParameters
from workers.models.glm_image.prompts import GlmImagePromptRenderer
from workers.models.glm_image.sources import Source, sources_of
from workers.runners.ar.parameters import ArParameters
from workers.runners.ar.prompts import OmniTokensPrompt
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import StageInput

DEFAULT_SIDE = 1024
"""Pixels of a side that neither the job nor a source picture says."""


class Text2TokensProcessor:
    """Tokenizes the message and the sizes of the grids. Its name in a stage config is ``text2tokens``."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Load the checkpoint's tokenizer. Raise ConfigError when there is no model or one of its files is wrong."""
        if model is None:
            raise ConfigError("processor text2tokens needs a model", field="processor", stage=stage.name)
        self._stage = stage
        self._renderer = GlmImagePromptRenderer(model.path)

    def __call__(self, stage_input: StageInput[GenerateParameters]) -> OmniTokensPrompt:
        """Return the prompt, in which each source picture stands as the tokens that an earlier stage made of it.

        Its additional information is ``grids`` int64 [n, 2], rows and columns of each grid that is to be written, and
        ``sources`` int64 [m, 3]: where in the prompt the grid of a source picture begins, its rows and its columns.
        Exactly the tokens of the grids are generated, because a picture of fewer or more could not be drawn. Raise
        and PayloadCorrupt.
        """
        parameters = stage_input.parameters
        sources = sources_of(stage_input, self._stage)
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


def _size(parameters: GenerateParameters, sources: list[Source]) -> tuple[int, int]:
    """Return height and width in pixels of the picture: as the job says, or as the first source picture has it."""
    height = width = DEFAULT_SIDE
    if sources:
        height, width = (min(max(side * PIXELS, SMALLEST), LARGEST) for side in sources[0].token_ids.shape)
    return parameters.height or height, parameters.width or width
