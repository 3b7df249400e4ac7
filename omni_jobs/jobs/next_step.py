"""The rules of a job's stage graph: the next step after a change. Pure; :mod:`omni_jobs.jobs.transition` applies it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from omni_jobs.database.tables import decode_json
from omni_jobs.jobs.values import Hint
from omni_jobs.retry import DEFAULT_RETRIES, RetryLimits
from omni_jobs.states import JobState, StageRunState

ACTIVE = (JobState.QUEUED, JobState.IN_PROGRESS)
"""The states of a job that wants its stage runs to go on."""

_WAITING = (StageRunState.PENDING, StageRunState.QUEUED)


@dataclass(slots=True)
class Run:
    """A stage run of a locked job, as :class:`omni_jobs.jobs.transition.JobTransition` reads and changes it."""

    id: int
    job_id: str
    stage: str
    queue: str
    inputs: tuple[str, ...]
    state: StageRunState
    attempt: int
    failures: Mapping[str, int]
    retries: RetryLimits
    owner: str | None
    payload_bytes: int | None = None
    payload_key: str | None = None  # of its object in the store; None: no payload, or an inline one
    payload_gone: bool = False  # deleted

    @property
    def has_payload(self) -> bool:
        """True while the stage run's payload is kept, inline or in the store."""
        return (self.payload_key is not None or bool(self.payload_bytes)) and not self.payload_gone

    @property
    def hint(self) -> Hint:
        """The hint to publish while the stage run is queued."""
        return Hint(self.id, self.attempt, self.queue)


class Step(NamedTuple):
    """The next step of a job after an end of a stage run: the job's new state, and the stage runs to change with it."""

    job_state: JobState
    queue: tuple[Run, ...] = ()  # pending runs whose inputs are all there
    cancel: tuple[Run, ...] = ()  # waiting runs of a job that goes no further


@lru_cache(maxsize=1024)
def retry_limits(retries: str | None) -> RetryLimits:
    """Return the retry limits in the JSON of a stage run's column ``retries``; None: the defaults."""
    return DEFAULT_RETRIES if retries is None else RetryLimits(**decode_json(retries))


@lru_cache(maxsize=1024)
def stage_names(inputs: str) -> tuple[str, ...]:
    """Return the names of a stage run's inputs from the JSON of its column ``inputs``."""
    return tuple(decode_json(inputs))


def next_step(state: JobState, runs: Iterable[Run], ending: JobState = JobState.CANCELLED) -> Step:
    """Return what follows for a job in ``state`` whose stage runs have become ``runs``, which are all of them.

    When nothing follows, the step has the same state and no stage runs. ``ending`` is the state in which a
    cancelling job ends.
    """
    runs = tuple(runs)
    states = [run.state for run in runs]
    if state == JobState.CANCELLING:
        return Step(JobState.CANCELLING if StageRunState.RUNNING in states else ending)
    if state.is_final:
        return Step(state)
    if states.count(StageRunState.SUCCEEDED) == len(runs):
        return Step(JobState.COMPLETED)
    if StageRunState.FAILED in states:
        return Step(JobState.FAILED, cancel=tuple(run for run in runs if run.state in _WAITING))
    if StageRunState.PENDING not in states:
        return Step(state)
    succeeded = {run.stage for run in runs if run.state == StageRunState.SUCCEEDED}
    ready = tuple(run for run in runs if run.state == StageRunState.PENDING and succeeded.issuperset(run.inputs))
    return Step(state, queue=ready)


def unneeded_payloads(runs: Iterable[Run]) -> list[Run]:
    """Return those of a job's stage runs whose stored payload no stage needs: all its consumers have succeeded."""
    runs = tuple(runs)
    return [
        run
        for run in runs
        if run.payload_key is not None
        and (consumers := [other.state for other in runs if run.stage in other.inputs])
        and consumers.count(StageRunState.SUCCEEDED) == len(consumers)
    ]
