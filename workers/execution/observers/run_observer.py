"""``RunObserver``: what can be heard of a stage run in its worker. Whoever hears it changes nothing about the run."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from omni_jobs.errors import OmniJobsError
from omni_jobs.jobs import Claim, Completion, StepSeconds
from omni_jobs.observers import Observers
from omni_jobs.states import StageRunState
from workers.stages.types import Progress


@dataclass(slots=True)
class StepTimes:
    """When a stage run was claimed, and how many seconds later it passed each step; None: not yet."""

    claimed_at: float  # seconds since 1970
    loaded_s: float | None = None
    ran_s: float | None = None
    stored_s: float | None = None
    ended_s: float | None = None
    clock_s: float = field(default_factory=time.monotonic, compare=False)  # the claim, by a clock that nobody sets

    def since_claim(self) -> float:
        """Return the seconds since the claim, now."""
        return time.monotonic() - self.clock_s

    def steps(self) -> StepSeconds:
        """Return the seconds of each step that was begun, until now for the one that goes on."""
        now_s = self.since_claim()
        if self.loaded_s is None:
            return StepSeconds(now_s)
        if self.ran_s is None:
            return StepSeconds(self.loaded_s, now_s - self.loaded_s)
        stored_s = now_s if self.stored_s is None else self.stored_s
        return StepSeconds(self.loaded_s, self.ran_s - self.loaded_s, stored_s - self.ran_s)


class RunResult(NamedTuple):
    """What became of a claimed stage run in this worker.

    completed  its completion is recorded
    failed     an error of the attempt is recorded: its own, or that of a rescuer who took the worker for lost
    released   it was handed back, and nothing is counted against it
    lost       nothing is recorded, because the attempt was over already or the worker is fenced
    """

    kind: Literal["completed", "failed", "released", "lost"]
    error: OmniJobsError | None = None  # of one that failed
    state: StageRunState | None = None  # the stage run's then, QUEUED if it is tried again; None: nobody knows


COMPLETED: Final = RunResult("completed")
RELEASED: Final = RunResult("released")
LOST: Final = RunResult("lost")


class RunObserver:
    """Hears of each stage run's steps in their order, on the executor's event loop. Each method returns at once.

    ``claimed`` comes first and ``ended`` last, once each. A stage run that fails or is stopped leaves out the steps
    between. Of a worker whose event loop stands still ``ended`` is not heard.
    """

    def claimed(self, claim: Claim, times: StepTimes) -> None:
        """The stage run is this worker's, and is about to be loaded."""

    def loaded(self, claim: Claim, times: StepTimes) -> None:
        """Its media, payloads and snapshot are read."""

    def progressed(self, claim: Claim, times: StepTimes, progress: Progress) -> None:
        """Its runner has reported progress, or that it waits for room in the runner."""

    def ran(self, claim: Claim, times: StepTimes) -> None:
        """Its runner has returned the output."""

    def stored(self, claim: Claim, times: StepTimes, completion: Completion) -> None:
        """Its payload and artifacts are stored, as the completion says, which is not recorded yet."""

    def ended(self, claim: Claim, times: StepTimes, result: RunResult) -> None:
        """Its end is recorded in SQL, or will not be."""


_NOBODY: Observers[RunObserver] = Observers()


class ObservedRun:
    """Takes the times of a stage run's steps, and tells its observers of each. After ``ended`` it tells nobody."""

    __slots__ = ("_claim", "_observers", "times")

    def __init__(self, claim: Claim, observers: Observers[RunObserver]) -> None:
        """Tell that the stage run was claimed, now."""
        self.times = StepTimes(time.time())
        self._claim = claim
        self._observers = observers
        observers.tell(RunObserver.claimed, claim, self.times)

    def loaded(self) -> None:
        self.times.loaded_s = self.times.since_claim()
        self._observers.tell(RunObserver.loaded, self._claim, self.times)

    def progressed(self, progress: Progress) -> None:
        self._observers.tell(RunObserver.progressed, self._claim, self.times, progress)

    def ran(self) -> None:
        self.times.ran_s = self.times.since_claim()
        self._observers.tell(RunObserver.ran, self._claim, self.times)

    def stored(self, completion: Completion) -> None:
        self.times.stored_s = self.times.since_claim()
        self._observers.tell(RunObserver.stored, self._claim, self.times, completion)

    def ended(self, result: RunResult) -> None:
        self.times.ended_s = self.times.since_claim()
        observers, self._observers = self._observers, _NOBODY
        observers.tell(RunObserver.ended, self._claim, self.times, result)
