"""``Jobs``, which owns the jobs, stage runs and workers in SQL, with its arguments and results."""

from omni_jobs.jobs.crew.action_turns import (
    ACTION_LEASE_S,
    WHY_SKIPPED,
    ActionStep,
    ActionTurn,
    GroupVerb,
    after_step,
)
from omni_jobs.jobs.crew.actions import Action, ActionVerb, NewAction, new_action_id
from omni_jobs.jobs.crew.rescue import DatabasePresence
from omni_jobs.jobs.crew.skipped import with_skipped
from omni_jobs.jobs.jobs import Jobs
from omni_jobs.jobs.keep.retention import Retention
from omni_jobs.jobs.keep.stage_samples import (
    COARSE_S,
    FINE_S,
    LONG_S,
    StageName,
    StageSample,
    StageStanding,
    VersionStage,
)
from omni_jobs.jobs.keep.usage import AMOUNTS, GROUPS
from omni_jobs.jobs.life.abandon import ABANDONED_S
from omni_jobs.jobs.life.first_tries import FirstTry, new_try
from omni_jobs.jobs.life.progress import MOST_TEXT
from omni_jobs.jobs.life.submit import as_written
from omni_jobs.jobs.observers import transition_observers
from omni_jobs.jobs.observers.jobs_observer import JobsObserver
from omni_jobs.jobs.observers.transition_log import TransitionLog
from omni_jobs.jobs.order.down_engines import DownStage
from omni_jobs.jobs.order.paused_stages import paused_since
from omni_jobs.jobs.order.pipeline_versions import KnownVersion, VersionWork
from omni_jobs.jobs.read.audit import PastAct
from omni_jobs.jobs.read.error_kinds import ErrorKind
from omni_jobs.jobs.read.tally import NUMBER, TalliedJob, Tally
from omni_jobs.jobs.read.waits import Detail
from omni_jobs.jobs.read.wanted_workers import StageNeed, wanted_workers
from omni_jobs.jobs.read.watched import WATCHED_S
from omni_jobs.jobs.values import (
    Change,
    Claim,
    Claims,
    Completion,
    Failure,
    Garbage,
    Glance,
    JobFilter,
    KeptPayload,
    Matches,
    NewSnapshot,
    NewWorker,
    Outcome,
    ProgressReport,
    PruneResult,
    Release,
    Renewal,
    Report,
    RescueResult,
    RunGlance,
    SlotHolder,
    StepSeconds,
    StoredArtifact,
    StoredSnapshot,
    SubmitResult,
    TextPiece,
    VideoJob,
    VideoPage,
    WantedText,
    Wishes,
)
from omni_jobs.new_job import NewJob, NewStage, new_job_id

__all__ = [
    "ABANDONED_S",
    "ACTION_LEASE_S",
    "AMOUNTS",
    "COARSE_S",
    "FINE_S",
    "GROUPS",
    "LONG_S",
    "MOST_TEXT",
    "NUMBER",
    "WATCHED_S",
    "WHY_SKIPPED",
    "Action",
    "ActionStep",
    "ActionTurn",
    "ActionVerb",
    "Change",
    "Claim",
    "Claims",
    "Completion",
    "DatabasePresence",
    "Detail",
    "DownStage",
    "ErrorKind",
    "Failure",
    "FirstTry",
    "Garbage",
    "Glance",
    "GroupVerb",
    "JobFilter",
    "Jobs",
    "JobsObserver",
    "KeptPayload",
    "KnownVersion",
    "Matches",
    "NewAction",
    "NewJob",
    "NewSnapshot",
    "NewStage",
    "NewWorker",
    "Outcome",
    "PastAct",
    "ProgressReport",
    "PruneResult",
    "Release",
    "Renewal",
    "Report",
    "RescueResult",
    "Retention",
    "RunGlance",
    "SlotHolder",
    "StageName",
    "StageNeed",
    "StageSample",
    "StageStanding",
    "StepSeconds",
    "StoredArtifact",
    "StoredSnapshot",
    "SubmitResult",
    "TalliedJob",
    "Tally",
    "TextPiece",
    "TransitionLog",
    "VersionStage",
    "VersionWork",
    "VideoJob",
    "VideoPage",
    "WantedText",
    "Wishes",
    "after_step",
    "as_written",
    "new_action_id",
    "new_job_id",
    "new_try",
    "paused_since",
    "transition_observers",
    "wanted_workers",
    "with_skipped",
]
