"""The input processor ``pictures2sources``: it decodes the pictures of a job's message, which are to be encoded."""

from omni_jobs.pipelines.stage_config import StageConfig
from workers.models.glm_image.parameters import EncodeParameters
from workers.models.pictures.source import bytes_of, decoded_sources
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import StageInput


class Pictures2SourcesProcessor:
    """Decodes a message's pictures and leaves its text alone. Its name in a stage config is ``pictures2sources``.

    A picture is taken as all media are: upright by its EXIF, on white where it is transparent, the first of several
    frames, with 8 bits a channel; a colour profile is not applied.
    """

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Do nothing: pictures are decoded in the same way for all checkpoints."""

    def __call__(self, stage_input: StageInput[EncodeParameters]) -> DiffusionPrompt[EncodeParameters]:
        """Return the prompt, of ``pixels``, a list of uint8 [H, W, 3]: empty for a job that edits nothing.

        Raises InvalidRequest or RequestTooLarge naming a picture that does not decode, DecodersUnavailable, and
        ConfigError without a media wall.
        """
        pixels = [bytes_of(picture) for picture in decoded_sources(stage_input)]
        return DiffusionPrompt({"pixels": pixels}, {}, stage_input.parameters, stage_input.seed)
