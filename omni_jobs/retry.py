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
_AT_ONCE: tuple[RetryClass, ...] = ("worker_lost", "fenced")  # what they limit is the harm done to workers

_Times = Annotated[int, Field(ge=0, le=100)]


class RetryLimits(BaseModel):
    """How often a stage run is tried again, by what went wrong. Bad input never is: it would go wrong again."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    worker_lost: _Times = 3  # then quarantined: it may be what kills them
    fenced: _Times = 10  # cut off from their leases by workers that live; then it may be what starves them
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

    A worker that is lost or fenced says nothing against the work: it goes on at once, but it counts,
    so that a job which kills its workers, or starves them, stops doing so.
    """
    if error.retry_class is None:
        return None
    times = failures[error.retry_class]
    if times > limits.of(error.retry_class):
        return None
    if error.retry_class in _AT_ONCE:
        return Retry(0.0)
    return Retry(min(FIRST_DELAY_S * 2 ** (times - 1), LONGEST_DELAY_S))


def is_last_chance(failures: Mapping[str, int], limits: RetryLimits) -> bool:
    """Whether one more worker that is lost, or fenced, quarantines the stage run.

    It then runs alone in its worker, so that those which were only near the culprit
    are not condemned with it.
    """
    return any(0 < failures.get(retry_class, 0) >= limits.of(retry_class) for retry_class in _AT_ONCE)
