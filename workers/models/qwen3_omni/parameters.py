"""The parameters of Qwen3-Omni's stages beyond those of any AR stage."""

from typing import Annotated

from pydantic import Field

from omni_jobs.pipelines.parameters import StageParameters
from workers.runners.ar.parameters import TokenParameters


class ChunkParameters(StageParameters):
    """How code2wav cuts the frames of codes. Other values than Transformers' make another waveform."""

    chunk_frames: Annotated[
        int, Field(ge=1, le=2000, description="frames of codes that are decoded at once: 12.5 are a second of speech")
    ] = 300
    context_frames: Annotated[
        int, Field(ge=0, le=300, description="frames before a chunk that are decoded with it, and not heard again")
    ] = 25


class TalkerParameters(TokenParameters):
    """Those of the talker: of the first code of a frame, and of the further ones, which the code predictor chooses."""

    residual_temperature: Annotated[
        float | None,
        Field(ge=0, le=2, description="of the further codes of a frame; without it 1, and 0 where temperature is 0"),
    ] = None
    residual_top_k: Annotated[int, Field(ge=0, le=100_000, description="0: all codes")] = 50
    residual_top_p: Annotated[float, Field(gt=0, le=1)] = 0.8

    @property
    def temperature_of_residuals(self) -> float:
        """The temperature of a frame's further codes. Transformers samples them where it samples the first."""
        if self.residual_temperature is not None:
            return self.residual_temperature
        return 1.0 if self.temperature > 0 else 0.0
