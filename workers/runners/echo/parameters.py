"""``EchoParameters``: what a job may set for an echo stage."""

from typing import Annotated

from pydantic import Field

from omni_jobs.pipelines.parameters import StageParameters


class EchoParameters(StageParameters):
    """Parameters of an echo stage, which has no model: it waits ``delay_s``, then emits ``payload_bytes``."""

    delay_s: Annotated[float, Field(ge=0, le=3600)] = 0.0
    payload_bytes: Annotated[int, Field(ge=0, le=1 << 30)] = 0
