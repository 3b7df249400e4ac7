"""What follows from the states of a job's stage runs. Pure: :mod:`omni_jobs.jobs.locked` applies it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from omni_jobs.jobs.values import Hint
from omni_jobs.retry import RetryLimits
from omni_jobs.states import JobState, StageRunState

__all__ = ["Run", "Step", "next_step", "unneeded_payloads"]

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
    failures: Mapping[str, int]
    retries: RetryLimits
    queue_limit_s: float | None
    owner: str | None
    payload_key: str | None = None  # of its object in the store
    payload_gone: bool = False

    @property
    def hint(self) -> Hint:
        return Hint(self.id, self.attempt, self.queue)


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be done to a job now."""

    job_state: JobState
    queue: tuple[Run, ...] = ()  # pending runs whose inputs are all there
    cancel: tuple[Run, ...] = ()  # waiting runs of a job that goes no further


def next_step(state: JobState, runs: Iterable[Run], ending: JobState = JobState.CANCELLED) -> Step:
    """The step after any change of ``runs``, all of one job in ``state``; the same state when nothing follows.

    ``ending`` is what a cancelling job comes to.
    """
    runs = tuple(runs)
    if state == JobState.CANCELLING:
        running = any(run.state == StageRunState.RUNNING for run in runs)
        return Step(JobState.CANCELLING if running else ending)
    if state.is_final:
        return Step(state)
    if any(run.state == StageRunState.FAILED for run in runs):
        return Step(JobState.FAILED, cancel=tuple(run for run in runs if run.state in _WAITING))
    succeeded = {run.stage for run in runs if run.state == StageRunState.SUCCEEDED}
    if len(succeeded) == len(runs):
        return Step(JobState.COMPLETED)
    ready = tuple(run for run in runs if run.state == StageRunState.PENDING and succeeded.issuperset(run.inputs))
    return Step(state, queue=ready)


def unneeded_payloads(succeeded: Iterable[Run], runs: Iterable[Run]) -> list[Run]:
    """The stage runs of a job whose stored payload no stage needs any more, now that these succeeded."""
    runs = tuple(runs)
    inputs = {earlier for run in succeeded for earlier in run.inputs}
    return [
        run
        for run in runs
        if run.stage in inputs
        and run.payload_key is not None
        and all(other.state == StageRunState.SUCCEEDED for other in runs if run.stage in other.inputs)
    ]
