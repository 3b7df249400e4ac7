"""``SayProcessor``: the last user message of a job becomes an acoustic stage's prompt."""

from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.messages import last_user_text
from workers.models.hibari.hibari_prompts import TextPrompt
from workers.models.hibari.parameters import AcousticParameters
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import StageInput


class SayProcessor:
    """Takes the text of the last user message. Its name in a stage config is ``say``."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Do nothing: the runner reads the voices."""

    def __call__(self, stage_input: StageInput[AcousticParameters]) -> TextPrompt:
        """Return the prompt."""
        return text_prompt(stage_input, last_user_text(stage_input.request))


def text_prompt(stage_input: StageInput[AcousticParameters], text: str, *, is_answer: bool = False) -> TextPrompt:
    """Return the prompt of a text in the voice that the job asks for."""
    voice = (stage_input.request.get("audio") or {}).get("voice")
    return TextPrompt(text, voice, stage_input.parameters, stage_input.seed, is_answer)
