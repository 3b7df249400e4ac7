"""``Features2WaveProcessor``: acoustic features become a vocoder stage's prompt."""

from omni_jobs.errors import PayloadCorrupt
from omni_jobs.pipelines.stage_config import StageConfig
from workers.models.hibari.family import ACOUSTIC_FEATURES
from workers.models.hibari.hibari_prompts import SPECTRA, FeaturesPrompt
from workers.models.hibari.parameters import VocoderParameters
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import StageInput


class Features2WaveProcessor:
    """Takes a payload of the flow ``acoustic_features``. Its name in a stage config is ``features2wave``."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Find the stage that makes the features."""
        self._upstream = next(name for name, flow in stage.inputs.items() if flow == ACOUSTIC_FEATURES.name)

    def __call__(self, stage_input: StageInput[VocoderParameters]) -> FeaturesPrompt:
        """Return the prompt, whose features view the payload.

        Raises PayloadCorrupt for a payload that breaks the flow's contract, or whose sentences are not all frames.
        """
        information = stage_input.information(self._upstream)
        problem = ACOUSTIC_FEATURES.problem(stage_input.upstream[self._upstream])
        if problem is not None:
            message, field = problem
            raise PayloadCorrupt(message, field=field, stage=self._upstream)
        features = {name: information.tensor(name).numpy() for name in (*SPECTRA, "f0")}
        sentences = information.tensor("sentences").numpy().tolist()
        frames = len(features["f0"])
        if min(sentences, default=1) < 1 or sum(sentences) != frames:
            raise PayloadCorrupt(
                f"sentences of {sum(sentences)} frames in all, or an empty one, where there are {frames} frames",
                field="tensors.sentences",
                stage=self._upstream,
            )
        return FeaturesPrompt(features, sentences, stage_input.parameters, stage_input.seed)
