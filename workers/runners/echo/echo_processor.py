"""``EchoProcessor``: the last user message and the size of the payloads become an echo stage's prompt."""

from typing import NamedTuple

from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.messages import last_user_text
from workers.runners.echo.parameters import EchoParameters
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import StageInput


class EchoPrompt(NamedTuple):
    """The engine prompt of an echo stage, which has no model: it gives the text back, and as many bytes as asked."""

    text: str
    upstream_bytes: int  # of the payloads' tensors
    parameters: EchoParameters
    seed: int
    capture: bool


class EchoProcessor:
    """Makes the EchoPrompt of an echo stage from any job. Its name in a stage config is ``echo``."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Do nothing: an echo stage has no checkpoint to read."""

    def __call__(self, stage_input: StageInput[EchoParameters]) -> EchoPrompt:
        """Return the prompt."""
        return EchoPrompt(
            text=last_user_text(stage_input.request),
            upstream_bytes=sum(payload.tensor_bytes for payload in stage_input.upstream.values()),
            parameters=stage_input.parameters,
            seed=stage_input.seed,
            capture=stage_input.capture,
        )
