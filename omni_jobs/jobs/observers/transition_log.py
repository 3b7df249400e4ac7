"""``TransitionLog``: a log line for each transition of a job or a stage run."""

import logging
from collections.abc import Sequence
from typing import Any

from omni_jobs.jobs.observers.jobs_observer import JobsObserver
from omni_jobs.jobs.values import Change
from omni_jobs.logs.line_filter import clean
from omni_jobs.logs.records import Line, log_lines
from omni_jobs.states import JobState, StageRunState
from omni_jobs.tracing.traceparent import trace_of

logger = logging.getLogger(__name__)

_JOB = ("job",)
_STAGE_RUN = ("job", "stage_run", "stage", "attempt")
_ATTEMPT = (*_STAGE_RUN, "worker")
_OF_JOB: dict[str, str] = {state: f"job {state.value}" for state in JobState}
_OF_STAGE_RUN: dict[str, str] = {state: f"stage run {state.value}" for state in StageRunState}


class TransitionLog(JobsObserver):
    """Writes the lines of one transaction in one record, because a busy worker has thousands of them a second."""

    def changed(self, changes: Sequence[Change]) -> None:
        if logger.isEnabledFor(logging.INFO):
            log_lines(logger, logging.INFO, [_line(change) for change in changes if change.error is None])
        log_lines(logger, logging.WARNING, [_line(change) for change in changes if change.error is not None])


def _line(change: Change) -> Line:
    job, state, stage_run, stage, attempt, worker, error, traceparent = change
    names: tuple[str, ...]
    values: tuple[Any, ...]
    if stage_run is None:
        message, names, values = _OF_JOB[state], _JOB, (job,)
    elif worker is None:
        message, names, values = _OF_STAGE_RUN[state], _STAGE_RUN, (job, stage_run, stage, attempt)
    else:
        message, names, values = _OF_STAGE_RUN[state], _ATTEMPT, (job, stage_run, stage, attempt, worker)
    if traceparent is not None:
        names, values = (*names, "trace"), (*values, trace_of(traceparent))
    if error is not None:
        names, values = (*names, "error"), (*values, error["code"])
        if stage_run is not None:  # the job's is its stage run's once more
            names, values = (*names, "because"), (*values, clean(str(error["message"])))
    return Line(message, names, values)
