"""``StageMeter`` and ``StageStatistics``: counts and times of one stage's runs in one process."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from workers.stages.types import OmniModelRunnerOutput, Progress


@dataclass(slots=True)
class StageStatistics:
    """One stage's counts and times since its start.

    runs, failed       runs that have ended; ``failed`` are among ``runs``
    most_at_once       the most runs in flight together
    busy_s             seconds in which at least one run was in flight
    run_s              seconds of all runs together: ``run_s / busy_s`` is how many ran at once on average
    units, unit        the output of all runs, as the runner counts it: "tokens", "steps"; "" before the first
    prompt_tokens      the prompts of AR stages
    payload_bytes      the payloads for later stages
    """

    runs: int = 0
    failed: int = 0
    most_at_once: int = 0
    busy_s: float = 0.0
    run_s: float = 0.0
    units: int = 0
    unit: str = ""
    prompt_tokens: int = 0
    payload_bytes: int = 0

    @property
    def mean_run_s(self) -> float:
        """The mean seconds of a run; 0 before the first."""
        return self.run_s / self.runs if self.runs else 0.0

    @property
    def units_per_s(self) -> float:
        """The units of the whole stage per second in which it was busy; 0 before the first run."""
        return self.units / self.busy_s if self.busy_s else 0.0


class StageMeter:
    """Counts one stage's runs for ``OmniLLM``. Runs are entered on one thread; any thread may read."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Begin to count; ``clock`` returns seconds and never goes back."""
        self._clock = clock
        self._lock = threading.Lock()
        self._counted = StageStatistics()  # without the units and the time of runs in flight
        self._in_flight: dict[object, Progress | None] = {}
        self._busy_since = 0.0

    @contextmanager
    def run(self) -> Iterator[Callable[[Progress], None]]:
        """Count the context manager's block as a run, failed if it raises; yield the function to call with progress."""
        key = object()
        begin = self._clock()
        with self._lock:
            if not self._in_flight:
                self._busy_since = begin
            self._in_flight[key] = None
            self._counted.most_at_once = max(self._counted.most_at_once, len(self._in_flight))

        def note(progress: Progress) -> None:
            with self._lock:
                if key in self._in_flight:
                    self._in_flight[key] = progress

        failed = True
        try:
            yield note
            failed = False
        finally:
            end = self._clock()
            with self._lock:
                _add_units(self._counted, self._in_flight.pop(key))
                self._counted.runs += 1
                self._counted.failed += failed
                self._counted.run_s += end - begin
                if not self._in_flight:
                    self._counted.busy_s += end - self._busy_since

    def count(self, output: OmniModelRunnerOutput, payload_bytes: int) -> None:
        """Add to the statistics the prompt tokens of one run's output, and the bytes of its payload."""
        with self._lock:
            self._counted.prompt_tokens += len(output.prompt_token_ids)
            self._counted.payload_bytes += payload_bytes

    def read(self) -> StageStatistics:
        """Return a copy of the statistics up to now, with the progress of runs in flight."""
        with self._lock:
            found = replace(self._counted)
            for progress in self._in_flight.values():
                _add_units(found, progress)
            if self._in_flight:
                found.busy_s += self._clock() - self._busy_since
            return found


def _add_units(statistics: StageStatistics, progress: Progress | None) -> None:
    if progress is not None:
        statistics.units += progress.done
        statistics.unit = progress.unit
