"""Whether a failed attempt is followed by another, and when. Pure: :mod:`omni_jobs.jobs` applies it."""

from __future__ import annotations

from dataclasses import dataclass

from omni_jobs.errors import OmniJobsError, WorkerLost

__all__ = ["Retry", "retry_after"]

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 60.0


@dataclass(frozen=True, slots=True)
class Retry:
    """Another attempt, ``delay_s`` from now."""

    delay_s: float


def retry_after(error: OmniJobsError, *, failures: int, max_attempts: int) -> Retry | None:
    """What follows the failure number ``failures`` (from 1); None: the stage run has failed for good.

    A lost worker says nothing against the work: it goes on at once, but it counts, so that
    a job which kills its workers stops doing so.
    """
    if not error.retryable or failures >= max_attempts:
        return None
    if isinstance(error, WorkerLost):
        return Retry(0.0)
    return Retry(min(FIRST_DELAY_S * 2 ** (failures - 1), LONGEST_DELAY_S))
