"""``WhisperEngine``: what a stage config may say under ``engine`` for a Whisper stage."""

from typing import Annotated, Any, Literal

from pydantic import Field

from omni_jobs.pipelines.engine_settings import EngineSettings


class WhisperEngine(EngineSettings):
    """Settings of CTranslate2. Its workers share one copy of the weights; each decodes one window at a time."""

    compute_type: Annotated[
        Literal[
            "auto", "int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16", "float32"
        ],
        Field(description="how weights are kept and multiplied; auto: the fastest on the host, so hosts may differ"),
    ] = "int8"
    # Two workers of one thread transcribe 1.5 times as much on two cores as one worker of two threads.
    cpu_threads: Annotated[int, Field(ge=1, le=256, description="threads of one worker")] = 1
    num_workers: Annotated[
        int | None, Field(ge=1, le=64, description="windows decoded at a time; null: one per core, at most the slots")
    ] = None

    def decisive(self) -> dict[str, Any]:
        return {} if self.compute_type == "int8" else {"compute_type": self.compute_type}
