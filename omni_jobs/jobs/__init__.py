"""``Jobs``, which owns the jobs, stage runs and workers in SQL, with its arguments and results."""

from omni_jobs.jobs.jobs import Jobs
from omni_jobs.jobs.submit import as_written, new_job_id
from omni_jobs.jobs.values import (
    Claim,
    Completion,
    Failure,
    Garbage,
    Hint,
    NewJob,
    NewStage,
    NewWorker,
    Outcome,
    ProgressReport,
    PruneResult,
    RescueResult,
    Retention,
    SlotHolder,
    StoredArtifact,
    SubmitResult,
    attempt_after,
)

__all__ = [
    "Claim",
    "Completion",
    "Failure",
    "Garbage",
    "Hint",
    "Jobs",
    "NewJob",
    "NewStage",
    "NewWorker",
    "Outcome",
    "ProgressReport",
    "PruneResult",
    "RescueResult",
    "Retention",
    "SlotHolder",
    "StoredArtifact",
    "SubmitResult",
    "as_written",
    "attempt_after",
    "new_job_id",
]
