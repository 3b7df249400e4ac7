"""What a stage config and a job may set for a plotter. Light: the API checks both."""

from typing import Annotated

from pydantic import Field

from omni_jobs.pipelines.engine_settings import EngineSettings
from omni_jobs.pipelines.parameters import StageParameters

__all__ = ["PlotterEngine", "PlotterParameters"]


class PlotterEngine(EngineSettings):
    """The keys of ``engine`` in a stage config."""

    pens: Annotated[int, Field(ge=1, le=64, description="curves that are drawn at once")] = 1
    chunk: Annotated[int, Field(ge=1, description="points between two reports of progress")] = 500


class PlotterParameters(StageParameters):
    """The wheels, and how the curve is drawn."""

    outer: Annotated[int, Field(ge=2, le=360, description="teeth of the wheel that stands still")] = 96
    inner: Annotated[int, Field(ge=1, le=359, description="teeth of the wheel that rolls in it")] = 52
    points: Annotated[int, Field(ge=2, le=1_000_000)] = 2000
    points_per_s: Annotated[float | None, Field(gt=0, description="the pen's speed; null: no limit")] = None
