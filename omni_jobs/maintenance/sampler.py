"""The sampler: it notes every ten seconds how each stage stands and what its workers counted.

A thread of each rescuer's process runs one. Any number may run, because whoever comes first in ten seconds takes the
sample.
"""

import time

from omni_jobs.jobs import Jobs
from omni_jobs.maintenance.rounds import Rounds
from omni_jobs.metrics.rescuer_metrics import RescuerMetrics

_LOOK_EVERY_S = 2.0  # whether a sample is due: a small read
_OLD_AFTER_S = 30.0  # where another rescuer takes the samples, this one shows no old ones


class Sampler(Rounds):
    """Takes the samples that are due, and shows the newest standing of each stage in the rescuer's metrics."""

    def __init__(self, jobs: Jobs, metrics: RescuerMetrics, every_s: float = _LOOK_EVERY_S) -> None:
        super().__init__("sampler", every_s)
        self._taken_at = time.monotonic()
        self._jobs = jobs
        self._metrics = metrics

    def _work(self) -> None:
        standings = self._jobs.sample()
        if standings is not None:
            self._metrics.stand(standings.items())
            self._taken_at = time.monotonic()
        elif time.monotonic() - self._taken_at > _OLD_AFTER_S:
            self._metrics.stand(())
