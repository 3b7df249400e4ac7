"""The input processor ``text2tokens``: it makes the language model's prompt of a job's message and picture size."""

import torch

from omni_jobs.errors import ConfigError, ModelError
from omni_jobs.pipelines.stage_config import StageConfig
from workers.models.glm_image.grids import grids_of
from workers.models.glm_image.parameters import GenerateParameters
from workers.models.glm_image.prompts import GlmImagePromptRenderer
from workers.runners.ar.parameters import ArParameters
from workers.runners.ar.prompts import OmniTokensPrompt
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import StageInput


class Text2TokensProcessor:
    """Tokenizes the message and the sizes of the grids. Its name in a stage config is ``text2tokens``."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Load the checkpoint's tokenizer. Raise ConfigError when there is no model or one of its files is wrong."""
        if model is None:
            raise ConfigError("processor text2tokens needs a model", field="processor", stage=stage.name)
        self._renderer = GlmImagePromptRenderer(model.path)

    def __call__(self, stage_input: StageInput) -> OmniTokensPrompt:
        """Return the prompt; its additional information is ``grids`` int64 [2, 2]: rows and columns of each.

        Exactly the tokens of the grids are generated, because a picture of fewer or more could not be drawn. Raise
        ModelError for parameters of another stage.
        """
        parameters = stage_input.parameters
        if not isinstance(parameters, GenerateParameters):
            raise ModelError("text2tokens makes input for a stage that writes image tokens", field="kind")
        grids = grids_of(parameters.height, parameters.width)
        return OmniTokensPrompt(
            prompt_token_ids=[*self._renderer.encode(stage_input.request), *self._renderer.encode_grids(grids)],
            additional_information={"grids": torch.tensor(grids)},
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
