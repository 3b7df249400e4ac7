"""``UpscaleEngine``: what a stage config may say under ``engine`` for a stage that enlarges pictures."""

from typing import Annotated, Any

from pydantic import Field, field_validator

from omni_jobs.pipelines.engine_settings import EngineSettings
from workers.models.upscale.networks import NetworkName


class UpscaleEngine(EngineSettings):
    """Settings of a stage that enlarges pictures."""

    networks: Annotated[
        tuple[NetworkName, ...],
        Field(min_length=1, max_length=3, description="those that a job may choose from, the default first"),
    ] = ("realesr-animevideov3-x4",)
    num_workers: Annotated[
        int | None, Field(ge=1, le=64, description="tiles enlarged at a time; null: one per core, at most the slots")
    ] = None

    @field_validator("networks")
    @classmethod
    def _once(cls, value: tuple[NetworkName, ...]) -> tuple[NetworkName, ...]:
        if len(set(value)) < len(value):
            raise ValueError("a network is named twice")
        return value

    def decisive(self) -> dict[str, Any]:
        """Return the default network alone: which others a job may choose changes no job that chose one."""
        first = type(self)().networks[0]
        return {} if self.networks[0] == first else {"network": self.networks[0]}
