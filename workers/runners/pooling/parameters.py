"""``PoolingParameters``: what a job may set for a pooling stage."""

from typing import Annotated, Final

from pydantic import Field

from omni_jobs.pipelines.parameters import StageParameters

LONGEST_NEGATIVE_PROMPT: Final = 100_000
"""Characters, of which any text encoder would make far more tokens than it takes."""


class PoolingParameters(StageParameters):
    """The negative prompt of a pooling stage. A family's own parameters may replace these."""

    negative_prompt: Annotated[
        str | None,
        Field(max_length=LONGEST_NEGATIVE_PROMPT, description="what the result should not be; None: no such rows"),
    ] = None
