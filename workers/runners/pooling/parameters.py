"""``PoolingParameters``: what a job may set for a pooling stage."""

from typing import Annotated

from pydantic import Field

from omni_jobs.pipelines.parameters import StageParameters

LONGEST_NEGATIVE_PROMPT = 100_000


class PoolingParameters(StageParameters):
    """The negative prompt of a pooling stage. A family's own parameters may replace these."""

    negative_prompt: Annotated[
        str | None,
        Field(max_length=LONGEST_NEGATIVE_PROMPT, description="what the result should not be; None: no such rows"),
    ] = None
