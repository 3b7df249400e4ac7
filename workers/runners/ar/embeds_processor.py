"""``EmbedsProcessor``: the prompt embeddings that an earlier stage made become an AR stage's prompt."""

from omni_jobs.errors import ModelError, PayloadCorrupt
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.renderers import load_renderer
from workers.runners.ar.parameters import ArParameters
from workers.runners.ar.prompts import OmniTokensPrompt
from workers.stages.engine_args import OmniModelConfig, needed_model
from workers.stages.flow_processor import FlowProcessor
from workers.stages.tensors import to_torch
from workers.stages.types import StageInput


class EmbedsProcessor(FlowProcessor):
    """Makes the prompt of an AR stage from a payload of the flow ``embeds``. Its name in a stage config is ``embeds``.

    A job of prompt embeddings comes to the first stage in its request instead, which is ``chat``'s affair.
    """

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Read the model's hidden size. Raises ConfigError when there is no model or renderer."""
        super().__init__(stage, model)
        model = needed_model(model, stage)
        self._hidden_size = load_renderer(model.family, model.path).hidden_size

    def __call__(self, stage_input: StageInput[ArParameters]) -> OmniTokensPrompt:
        """Return the prompt. Raises PayloadCorrupt without embeddings, ModelError for rows of another width or NaN."""
        upstream = self.payload(stage_input, "embeds")
        payload = upstream.prompt_embeds
        if payload is None:
            raise PayloadCorrupt("missing", field="prompt_embeds", stage=upstream.manifest.stage)
        if payload.embeds.shape[1] != self._hidden_size:  # the engine would die of it
            raise ModelError(f"rows of {payload.embeds.shape[1]}, not {self._hidden_size}", field="prompt_embeds.shape")
        return OmniTokensPrompt(
            prompt_token_ids=(),
            additional_information={},
            parameters=stage_input.parameters,
            seed=stage_input.seed,
            capture=stage_input.capture,
            prompt_embeds=to_torch(payload.embeds),
        )
