"""``TokenEmbedsProcessor``: a job's messages become the prompt of a pooling stage."""

from collections.abc import Mapping, Sequence
from typing import Any

from omni_jobs.errors import InvalidRequest, ModelError
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.renderers import load_renderer
from workers.runners.pooling.parameters import PoolingParameters
from workers.runners.pooling.prompt import PoolingPrompt
from workers.stages.engine_args import OmniModelConfig, needed_model
from workers.stages.types import StageInput


class TokenEmbedsProcessor:
    """Renders a job's messages, and its negative prompt as a user's message, with the checkpoint's chat template.

    Its name in a stage config is ``token_embeds``.
    """

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Load the prompt renderer of the checkpoint. Raises ConfigError when there is no model or renderer."""
        model = needed_model(model, stage)
        self._stage = stage.name
        self._renderer = load_renderer(model.family, model.path)

    def __call__(self, stage_input: StageInput[PoolingParameters]) -> PoolingPrompt:
        """Return the token ids of both prompts.

        Raises InvalidRequest for a text that the tokenizer would read as the template's own markup, and ModelError for
        a request of embeddings.
        """
        parameters = stage_input.parameters
        if "prompt_embeds" in stage_input.request:
            raise ModelError("a pooling stage makes embeddings, and takes none", field="prompt_embeds")
        negative = parameters.negative_prompt
        return PoolingPrompt(
            prompt_token_ids=self._encoded(stage_input.request),
            parameters=parameters,
            seed=stage_input.seed,
            negative_token_ids=None if negative is None else self._negative(negative),
        )

    def _negative(self, text: str) -> Sequence[int]:
        request = {"messages": [{"role": "user", "content": text}]}
        try:
            self._renderer.check(request)
            return self._encoded(request)
        except InvalidRequest as error:
            error.field = f"stages.{self._stage}.negative_prompt"
            raise

    def _encoded(self, request: Mapping[str, Any]) -> Sequence[int]:
        token_ids = self._renderer.encode(request)
        if token_ids is None:
            raise ModelError("the family's prompt renderer makes no token ids", field="processor")
        return token_ids
