"""``StageParameters``: what a job may set per stage, one class for each runner or component.

A stage config gives the defaults; a job's ``stages`` object overrides them field by field. Both are checked against
the same class, which refuses unknown names.
"""

from pydantic import BaseModel, ConfigDict


class StageParameters(BaseModel):
    """Base class of stages' parameters. Refuses unknown names, NaN, and values of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)
