"""Whether a failed attempt is followed by another, and when. Pure: :mod:`omni_jobs.jobs` applies it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from omni_jobs.errors import OmniJobsError, RetryClass

__all__ = ["DEFAULT_RETRIES", "Retry", "RetryLimits", "is_last_chance", "retry_after"]

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 60.0

_Times = Annotated[int, Field(ge=0, le=100)]


class RetryLimits(BaseModel):
    """How often a stage run is tried again, by what went wrong. Bad input never is: it would go wrong again."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    worker_lost: _Times = 3  # then quarantined: it may be what kills them
    out_of_memory: _Times = 3
    storage: _Times = 6
    model_error: _Times = 0
    time_limit: _Times = 0

    def of(self, retry_class: RetryClass) -> int:
        limit: int = getattr(self, retry_class)
        return limit


DEFAULT_RETRIES = RetryLimits()


@dataclass(frozen=True, slots=True)
class Retry:
    """Another attempt, ``delay_s`` from now."""

    delay_s: float


def retry_after(error: OmniJobsError, failures: Mapping[str, int], limits: RetryLimits) -> Retry | None:
    """What follows ``error``, the last of ``failures`` by retry class; None: the stage run has failed for good.

    A lost worker says nothing against the work: it goes on at once, but it counts, so that
    a job which kills its workers stops doing so.
    """
    if error.retry_class is None:
        return None
    times = failures[error.retry_class]
    if times > limits.of(error.retry_class):
        return None
    if error.retry_class == "worker_lost":
        return Retry(0.0)
    return Retry(min(FIRST_DELAY_S * 2 ** (times - 1), LONGEST_DELAY_S))


def is_last_chance(failures: Mapping[str, int], limits: RetryLimits) -> bool:
    """Whether one more lost worker quarantines the stage run.

    It then runs alone in its worker, so that those which were only near the culprit
    are not condemned with it.
    """
    lost = failures.get("worker_lost", 0)
    return lost > 0 and lost >= limits.worker_lost
