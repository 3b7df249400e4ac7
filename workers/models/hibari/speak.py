"""``SpeakProcessor``: the text that an earlier stage wrote becomes an acoustic stage's prompt."""

from omni_jobs.errors import PayloadCorrupt
from omni_jobs.pipelines.stage_config import StageConfig
from workers.models.hibari.hibari_prompts import TextPrompt
from workers.models.hibari.parameters import AcousticParameters
from workers.models.hibari.say import text_prompt
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import StageInput


class SpeakProcessor:
    """Takes the text of a payload of the flow ``text``. Its name in a stage config is ``speak``."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Find the stage that writes the text."""
        self._upstream = next(name for name, flow in stage.inputs.items() if flow == "text")

    def __call__(self, stage_input: StageInput[AcousticParameters]) -> TextPrompt:
        """Return the prompt from the payload's tensor ``text`` U8 [bytes], UTF-8.

        Raises PayloadCorrupt naming the field that is missing or wrong.
        """
        information = stage_input.information(self._upstream)
        text = bytes(information.tensor("text", dtypes=frozenset({"U8"}), rank=1).data)
        try:
            return text_prompt(stage_input, text.decode(), is_answer=True)
        except UnicodeDecodeError as error:
            raise PayloadCorrupt(f"not UTF-8: {error.reason}", field="tensors.text") from None
