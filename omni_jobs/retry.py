"""The rules for retries: whether another attempt follows, and when. Pure; :mod:`omni_jobs.jobs` applies them."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from omni_jobs.errors import OmniJobsError, RetryClass

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 60.0
_HARMFUL: tuple[RetryClass, ...] = ("worker_lost", "fenced")  # classes whose failures harm the worker

_Times = Annotated[int, Field(ge=0, le=100)]


class RetryLimits(BaseModel):
    """The number of times a stage run is tried again, for failures of each retry class.

    Bad input has no retry class, because another attempt would fail as well.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    worker_lost: _Times = 3  # then it is quarantined, because it may be what kills its workers
    fenced: _Times = 10  # then it is quarantined, because it may be what keeps its workers from renewing their leases
    out_of_memory: _Times = 3
    storage: _Times = 6
    remote: _Times = 10  # each after a stage run has waited for the server, for as long as its engine settings say
    model_error: _Times = 0
    time_limit: _Times = 0

    def of(self, retry_class: RetryClass) -> int:
        """Return how often a stage run is tried again after failures of this retry class."""
        limit: int = getattr(self, retry_class)
        return limit


DEFAULT_RETRIES = RetryLimits()


def retry_delay(error: OmniJobsError, failures: Mapping[str, int], limits: RetryLimits) -> float | None:
    """Return the seconds until the next attempt; None: the stage run has failed for good.

    ``error`` is the last failure; ``failures`` has the number of failures by retry class, the last one included. A lost
    or fenced worker causes no delay, because it says nothing against the work. It counts as a failure all the same, so
    that a job cannot harm workers for ever.
    """
    if error.retry_class is None:
        return None
    times = failures[error.retry_class]
    if times > limits.of(error.retry_class):
        return None
    if error.retry_class in _HARMFUL:
        return 0.0
    return min(FIRST_DELAY_S * 2.0 ** (times - 1), LONGEST_DELAY_S)


def is_last_chance(failures: Mapping[str, int], limits: RetryLimits) -> bool:
    """Return whether a stage run with these failures is a suspect: the loss of one more worker quarantines it.

    A suspect runs alone in its worker, so that its neighbours do not count a loss that it caused.
    """
    return any(0 < failures.get(retry_class, 0) >= limits.of(retry_class) for retry_class in _HARMFUL)
