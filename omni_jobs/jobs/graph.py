"""What follows from the states of a job's stage runs. Pure: :mod:`omni_jobs.jobs.locked` applies it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from omni_jobs.jobs.values import Hint
from omni_jobs.states import JobState, StageRunState

__all__ = ["Run", "Step", "next_step"]

_WAITING = (StageRunState.PENDING, StageRunState.QUEUED)


@dataclass(slots=True)
class Run:
    """A stage run as its job's lock holder knows it."""

    id: int
    job_id: str
    stage: str
    queue: str
    inputs: tuple[str, ...]
    state: StageRunState
    attempt: int
    failures: int
    max_attempts: int
    owner: str | None

    @property
    def hint(self) -> Hint:
        return Hint(self.id, self.attempt, self.queue)


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be done to a job now."""

    job_state: JobState
    queue: tuple[Run, ...] = ()  # pending runs whose inputs are all there
    cancel: tuple[Run, ...] = ()  # waiting runs of a job that goes no further


def next_step(state: JobState, runs: Iterable[Run]) -> Step:
    """The step after any change of ``runs``, all of one job in ``state``; the same state when nothing follows."""
    runs = tuple(runs)
    if state == JobState.CANCELLING:
        running = any(run.state == StageRunState.RUNNING for run in runs)
        return Step(JobState.CANCELLING if running else JobState.CANCELLED)
    if state.is_final:
        return Step(state)
    if any(run.state == StageRunState.FAILED for run in runs):
        return Step(JobState.FAILED, cancel=tuple(run for run in runs if run.state in _WAITING))
    succeeded = {run.stage for run in runs if run.state == StageRunState.SUCCEEDED}
    if len(succeeded) == len(runs):
        return Step(JobState.COMPLETED)
    ready = tuple(run for run in runs if run.state == StageRunState.PENDING and succeeded.issuperset(run.inputs))
    return Step(state, queue=ready)
