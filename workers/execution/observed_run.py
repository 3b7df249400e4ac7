"""``ObservedRun``: tells the observers of a claimed stage run of each step that the executor takes it through."""

import time

from omni_jobs.jobs import Claim, Completion
from omni_jobs.observers import Observers
from workers.execution.observers.run_observer import RunObserver, RunResult, StepTimes
from workers.stages.types import Progress

_NOBODY: Observers[RunObserver] = Observers()


class ObservedRun:
    """Takes the times of a stage run's steps, and tells its observers of each. After ``ended`` it tells nobody."""

    __slots__ = ("_claim", "_observers", "_since", "times")

    def __init__(self, claim: Claim, observers: Observers[RunObserver]) -> None:
        """Tell that the stage run was claimed, now."""
        self.times = StepTimes(time.time())
        self._since = time.monotonic()
        self._claim = claim
        self._observers = observers
        observers.tell(RunObserver.claimed, claim, self.times)

    def loaded(self) -> None:
        self.times.loaded_s = time.monotonic() - self._since
        self._observers.tell(RunObserver.loaded, self._claim, self.times)

    def progressed(self, progress: Progress) -> None:
        self._observers.tell(RunObserver.progressed, self._claim, self.times, progress)

    def ran(self) -> None:
        self.times.ran_s = time.monotonic() - self._since
        self._observers.tell(RunObserver.ran, self._claim, self.times)

    def stored(self, completion: Completion) -> None:
        self.times.stored_s = time.monotonic() - self._since
        self._observers.tell(RunObserver.stored, self._claim, self.times, completion)

    def ended(self, result: RunResult) -> None:
        self.times.ended_s = time.monotonic() - self._since
        observers, self._observers = self._observers, _NOBODY
        observers.tell(RunObserver.ended, self._claim, self.times, result)
