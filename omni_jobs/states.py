"""The states of a job and of its stage runs.

Only :mod:`omni_jobs.jobs` changes a state.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["JobState", "StageRunState"]


class JobState(StrEnum):
    """One user submission."""

    QUEUED = "queued"  # accepted; no stage run has started
    IN_PROGRESS = "in_progress"  # at least one stage run has been claimed
    CANCELLING = "cancelling"  # asked to stop while a worker still runs a stage of it
    COMPLETED = "completed"  # every requested output is stored
    FAILED = "failed"  # a stage run failed for good; ``error`` says which and why
    CANCELLED = "cancelled"  # stopped on request, nothing of it runs
    EXPIRED = "expired"  # its deadline passed first

    @property
    def is_final(self) -> bool:
        return self in _FINAL_JOB


class StageRunState(StrEnum):
    """One stage of one job."""

    PENDING = "pending"  # waits for an earlier stage
    QUEUED = "queued"  # may be claimed once ``due``; this row is the outbox
    RUNNING = "running"  # claimed by ``owner`` under its lease
    SUCCEEDED = "succeeded"  # its payload and artifacts are recorded
    FAILED = "failed"  # no attempt left, or none would help
    CANCELLED = "cancelled"  # its job ended before it did

    @property
    def is_final(self) -> bool:
        return self in _FINAL_STAGE_RUN


_FINAL_JOB = {JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED}
_FINAL_STAGE_RUN = {StageRunState.SUCCEEDED, StageRunState.FAILED, StageRunState.CANCELLED}
