"""``EnlargeProcessor``: the picture in a job's messages becomes the prompt of a stage that enlarges pictures."""

import numpy as np

from omni_jobs.errors import ModelError
from omni_jobs.pipelines.stage_config import StageConfig
from workers.models.pictures.source import decoded_sources
from workers.models.upscale.opacity import visible_colours
from workers.models.upscale.parameters import UpscaleParameters
from workers.models.upscale.upscale_prompt import UpscalePrompt
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import StageInput


class EnlargeProcessor:
    """Decodes the picture of a job's messages, and leaves their text alone. Its name in a stage config is ``enlarge``.

    A picture is taken as all media are: upright by its EXIF, the first of several frames, with 8 bits a channel, in
    sRGB. Where it is transparent, its opacity goes with it.
    """

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Do nothing: pictures are decoded in the same way for all networks."""

    def __call__(self, stage_input: StageInput[UpscaleParameters]) -> UpscalePrompt:
        """Return the prompt of the picture.

        Raises InvalidRequest or RequestTooLarge naming a picture that does not decode, DecodersUnavailable, ConfigError
        without a media wall, and ModelError for a job without exactly one picture.
        """
        pictures = decoded_sources(stage_input, keeps_opacity=True)
        if len(pictures) != 1:
            raise ModelError(f"there are {len(pictures)} pictures to enlarge, not one", field="messages")
        [picture] = pictures
        if picture.mode == "RGB":
            return UpscalePrompt(np.asarray(picture), stage_input.parameters)
        return UpscalePrompt(visible_colours(picture), stage_input.parameters, np.asarray(picture.getchannel("A")))
