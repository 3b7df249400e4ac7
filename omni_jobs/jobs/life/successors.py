"""The successors that a change queues, and the job's state after it. Pure: ``JobTransition`` applies them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from omni_jobs.database.tables import decode_json
from omni_jobs.jobs.values import StoredSnapshot
from omni_jobs.retry import DEFAULT_RETRIES, RetryLimits
from omni_jobs.states import JobState, StageRunState

ACTIVE = (JobState.QUEUED, JobState.IN_PROGRESS)
"""The states of a job that wants its stage runs to go on."""

QUOTA = "quota"
"""The ``reason`` of a pending stage run that is not queued until its job is let in (``omni_jobs.jobs.order.quota``)."""

_WAITING = (StageRunState.PENDING, StageRunState.QUEUED)


@dataclass(slots=True)
class Run:
    """A stage run of a locked job: the copy in memory that ``JobTransition`` reads, changes and writes back."""

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
    reason: str | None = None  # why it waits, if not for its turn
    snapshot: StoredSnapshot | None = None  # the newest; None: there is none
    started_at: float | None = None  # when it was claimed last
    usage: dict[str, float] | None = None  # of its attempts that have ended

    @property
    def has_payload(self) -> bool:
        """True while the stage run's payload is kept, in SQL or in the object store."""
        return (self.payload_key is not None or bool(self.payload_bytes)) and not self.payload_gone


class Step(NamedTuple):
    """What ``next_step`` returns: a job's new state, and the stage runs to change with it."""

    job_state: JobState
    queue: tuple[Run, ...] = ()  # pending runs whose inputs are all there, but for those that are held
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
    """Return the step that a job in ``state`` takes after a change; ``runs`` are all its stage runs, already changed.

    When nothing follows, the step has the same state and no stage runs. ``ending`` is the state that a job in state
    cancelling has in the end.
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
    pending = (run for run in runs if run.state == StageRunState.PENDING and run.reason != QUOTA)
    return Step(state, queue=tuple(run for run in pending if succeeded.issuperset(run.inputs)))


def unneeded_payloads(runs: Iterable[Run]) -> list[Run]:
    """Return the stage runs of a job with a stored payload that no stage needs, because all that take it succeeded."""
    runs = tuple(runs)
    return [
        run
        for run in runs
        if run.payload_key is not None
        and (successors := [other.state for other in runs if run.stage in other.inputs])
        and successors.count(StageRunState.SUCCEEDED) == len(successors)
    ]
