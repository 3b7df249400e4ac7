"""The input processors of the stages that speak: ``say``, ``speak`` and ``features2wave``."""

from omni_jobs.errors import PayloadCorrupt
from omni_jobs.prompts.messages import last_user_text
from workers.models.hibari.family import ACOUSTIC_FEATURES
from workers.models.hibari.hibari_prompts import SPECTRA, FeaturesPrompt, TextPrompt
from workers.models.hibari.parameters import AcousticParameters, VocoderParameters
from workers.stages.flow_processor import FlowProcessor
from workers.stages.types import StageInput


class SayProcessor(FlowProcessor):
    """Takes the text of the last user message. Its name in a stage config is ``say``."""

    def __call__(self, stage_input: StageInput[AcousticParameters]) -> TextPrompt:
        """Return the acoustic stage's prompt."""
        return _text_prompt(stage_input, last_user_text(stage_input.request))


class SpeakProcessor(FlowProcessor):
    """Takes the text that an earlier stage wrote, a payload ``text``. Its name in a stage config is ``speak``."""

    def __call__(self, stage_input: StageInput[AcousticParameters]) -> TextPrompt:
        """Return the acoustic stage's prompt from the payload's tensor ``text`` U8 [bytes], UTF-8.

        Raises PayloadCorrupt naming the field that is missing or wrong.
        """
        text = bytes(self.information(stage_input, "text").tensor("text", dtypes=frozenset({"U8"}), rank=1).data)
        try:
            return _text_prompt(stage_input, text.decode(), is_answer=True)
        except UnicodeDecodeError as error:
            raise PayloadCorrupt(f"not UTF-8: {error.reason}", field="tensors.text") from None


class Features2WaveProcessor(FlowProcessor):
    """Takes a payload of the flow ``acoustic_features``. Its name in a stage config is ``features2wave``."""

    def __call__(self, stage_input: StageInput[VocoderParameters]) -> FeaturesPrompt:
        """Return the vocoder stage's prompt, whose features view the payload.

        Raises PayloadCorrupt for a payload that breaks the flow's contract, or whose sentences are not all frames.
        """
        payload = self.payload(stage_input, ACOUSTIC_FEATURES.name)
        if (problem := ACOUSTIC_FEATURES.problem(payload)) is not None:
            raise PayloadCorrupt(problem.message, field=problem.field, stage=payload.manifest.stage)
        information = self.information(stage_input, ACOUSTIC_FEATURES.name)
        features = {name: information.tensor(name).numpy() for name in (*SPECTRA, "f0")}
        sentences = information.tensor("sentences").numpy().tolist()
        frames = len(features["f0"])
        if min(sentences, default=1) < 1 or sum(sentences) != frames:
            raise PayloadCorrupt(
                f"sentences of {sum(sentences)} frames in all, or an empty one, where there are {frames} frames",
                field="tensors.sentences",
                stage=payload.manifest.stage,
            )
        return FeaturesPrompt(features, sentences, stage_input.parameters, stage_input.seed)


def _text_prompt(stage_input: StageInput[AcousticParameters], text: str, *, is_answer: bool = False) -> TextPrompt:
    """Return the prompt of a text in the voice that the job asks for."""
    return TextPrompt(text, stage_input.voice, stage_input.parameters, stage_input.seed, is_answer)
