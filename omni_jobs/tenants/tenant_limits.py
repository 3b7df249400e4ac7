"""``Limits``: what an operator allows a tenant at most; and the checks of a tenant's name, weight and limits."""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from omni_jobs.errors import InvalidRequest

LIGHTEST, HEAVIEST = 0.001, 1000.0
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_Number = Annotated[int, Field(ge=0, le=2**53)]


class Limits(BaseModel):
    """The limits of a tenant. None: no limit but the settings'. A limit of a later build is passed over."""

    model_config = ConfigDict(frozen=True)

    queued_jobs: _Number | None = None  # waiting jobs of each pipeline, in place of max_queued_jobs_per_tenant
    running_jobs: _Number | None = None  # in stages' lines and running; further ones wait, or are refused
    requests_per_minute: Annotated[int, Field(ge=1, le=10**6)] | None = None  # to this API
    media_bytes: _Number | None = None  # the media of unfinished jobs together
    stored_bytes: _Number | None = None  # what is kept of all jobs, whether they have ended or not


NO_LIMITS: Final = Limits()


def check_name(name: str, field: str | None = "name") -> str:
    """Return a tenant's name. Raises InvalidRequest, naming ``field``, if it is malformed."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest("must be 1 to 64 letters, digits, dots, dashes or underscores", field=field)
    return name


def check_weight(weight: float) -> float:
    """Return a tenant's weight. Raises InvalidRequest unless it is finite and within LIGHTEST and HEAVIEST."""
    if not (math.isfinite(weight) and LIGHTEST <= weight <= HEAVIEST):
        raise InvalidRequest(f"must be a number from {LIGHTEST:g} to {HEAVIEST:g}, not {weight:g}", field="weight")
    return weight


def check_limits(limits: Mapping[str, int]) -> Limits:
    """Return limits by name. Raises InvalidRequest, which names a limit that is unknown or out of range."""
    for name in limits:
        if name not in Limits.model_fields:
            raise InvalidRequest(f"no such limit; there are: {', '.join(Limits.model_fields)}", field=f"{name:.64}")
    try:
        return Limits.model_validate(dict(limits), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidRequest(first["msg"], field=str(first["loc"][0])) from None
