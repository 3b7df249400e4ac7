"""The states of jobs, of stage runs and of actions on many jobs. Only :mod:`omni_jobs.jobs` changes a state."""

from enum import StrEnum


class JobState(StrEnum):
    """The state of a job: one user submission."""

    QUEUED = "queued"  # accepted; no stage run has started
    IN_PROGRESS = "in_progress"  # at least one stage run has been claimed
    CANCELLING = "cancelling"  # cancelled or expired, while a worker still runs a stage of it
    COMPLETED = "completed"  # every requested output is stored
    FAILED = "failed"  # a stage run failed for good; ``error`` says which and why
    CANCELLED = "cancelled"  # cancelled by its user, and nothing of it runs
    EXPIRED = "expired"  # its deadline passed, or it waited too long for a stage

    @property
    def is_final(self) -> bool:
        """True once the job has ended; only a retry by its user opens it again."""
        return self in _FINAL_JOB


class StageRunState(StrEnum):
    """The state of a stage run: one stage of one job."""

    PENDING = "pending"  # waits for earlier stages
    QUEUED = "queued"  # may be claimed from the time ``due``, in its turn
    RUNNING = "running"  # claimed by ``owner`` under its lease
    SUCCEEDED = "succeeded"  # its payload and artifacts are recorded
    FAILED = "failed"  # no attempt is left, or none would help
    CANCELLED = "cancelled"  # its job ended before it did

    @property
    def is_final(self) -> bool:
        """True once the stage run has ended."""
        return self in _FINAL_STAGE_RUN


class ActionState(StrEnum):
    """The state of an action on the jobs that match a filter."""

    COUNTING = "counting"  # the jobs that match are counted
    RUNNING = "running"  # group after group of them is changed
    DONE = "done"  # it has come to the last of them
    STOPPED = "stopped"  # by somebody; what it has changed stays so
    FAILED = "failed"  # it cannot go on; ``trouble`` says why

    @property
    def is_final(self) -> bool:
        """True once nobody takes the action up any more."""
        return self not in (ActionState.COUNTING, ActionState.RUNNING)


_FINAL_JOB = {JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED}
_FINAL_STAGE_RUN = {StageRunState.SUCCEEDED, StageRunState.FAILED, StageRunState.CANCELLED}
