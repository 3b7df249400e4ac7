"""The input processors: a request → the tinted stage's input; its payload → the summary's."""

from collections.abc import Mapping

from safetensors.torch import load_file

from omni_jobs.errors import ConfigError, ModelError, PayloadCorrupt
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.renderers import load_renderer
from workers.runners.ar.parameters import ArParameters
from workers.runners.ar.prompts import OmniTokensPrompt
from workers.runners.echo.echo_processor import EchoPrompt
from workers.runners.echo.parameters import EchoParameters
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import StageInput

__all__ = ["SummaryProcessor", "TintProcessor"]


class TintProcessor:
    """The request's prompt, and the tint its first message names: "warm", "cold" …"""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        if model is None:
            raise ConfigError("processor tint needs a model", field="processor", stage=stage.name)
        self._renderer = load_renderer(model.family, model.path)
        self._tints = load_file(model.path / "tints" / "tints.safetensors")

    def __call__(self, stage_input: StageInput[ArParameters]) -> OmniTokensPrompt:
        tint = self._tints.get(str(stage_input.request["messages"][0]["content"]))
        if tint is None:
            raise ModelError("the first message names no tint", field="messages.0.content")
        return OmniTokensPrompt(
            prompt_token_ids=list(self._renderer.encode(stage_input.request) or ()),
            additional_information={"tint": tint, "drift": self._tints["drift"]},
            parameters=stage_input.parameters,
            seed=stage_input.seed,
            capture=stage_input.capture,
        )


class SummaryProcessor:
    """Reads every kind of output: a tensor, a list of tensors, a dict of tensors."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        self._upstream = next(iter(stage.inputs))

    def __call__(self, stage_input: StageInput[EchoParameters]) -> EchoPrompt:
        payload = stage_input.upstream[self._upstream]
        information = payload.additional_information
        if information is None:
            raise PayloadCorrupt("missing", field="additional_information")
        rows = information.tensor("hidden_states", rank=2).shape[0]
        mean = information.tensor("mean", rank=1).shape[0]
        per_eight, per_part = information.tensors.get("per_eight"), information.tensors.get("per_part")
        if not isinstance(per_eight, list) or not isinstance(per_part, Mapping):
            raise PayloadCorrupt("no list and dict of tensors", field="tensors.per_eight")
        text = f"{rows} rows of {mean}; {len(per_eight)} in eights; parts {', '.join(per_part)}"
        return EchoPrompt(text, payload.nbytes, stage_input.parameters, stage_input.seed, stage_input.capture)
