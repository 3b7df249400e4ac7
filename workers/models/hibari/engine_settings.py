"""``HibariEngine``: what a stage config may say under ``engine`` for the stages that speak."""

from typing import Annotated

from pydantic import Field

from omni_jobs.pipelines.engine_settings import EngineSettings


class HibariEngine(EngineSettings):
    """Settings of the stages that speak. None changes a sample of what is said."""

    threads: Annotated[int, Field(ge=1, le=64, description="of onnxruntime in one sentence; only for ``acoustic``")] = 1
    num_workers: Annotated[
        int | None, Field(ge=1, le=64, description="sentences made at a time; null: one per core, at most the slots")
    ] = None
    # A second of speech is 1 MB of features.
    max_speech_s: Annotated[float, Field(gt=0, le=3600, description="the longest speech; a job of more fails")] = 300.0
