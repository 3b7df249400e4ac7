"""``Rounds``: the loop of the rescuer and of the pruner, which no outage and no bug ends."""

import logging
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from omni_jobs.database.database import Database
from omni_jobs.errors import OmniJobsError
from omni_jobs.metrics.beat_file import BeatFile

logger = logging.getLogger(__name__)


class Rounds(ABC):
    """The loop that the rescuer and the pruner inherit: work that is repeated every ``every_s`` seconds until ``stop``.

    ``name`` stands before its log messages. Each round that went well is a beat of ``beat_file``, if given.
    """

    def __init__(self, name: str, every_s: float, beat_file: BeatFile | None = None) -> None:
        self._name = name
        self._every_s = every_s
        self._beat_file = beat_file
        self._stopped = threading.Event()
        self._is_failing = False

    @abstractmethod
    def _work(self) -> None:
        """Do one round. Raises OmniJobsError for a service that does not answer."""

    def run(self, database: Database) -> None:
        """Do rounds, with a pause of about ``every_s`` after each, until ``stop``.

        The first waits until ``database`` answers and has its schema. Errors are logged.
        """
        is_ready = False
        while not self._stopped.is_set():
            try:
                is_ready = is_ready or self._attempt(database.check)
                if is_ready:
                    self.round()
            except Exception:  # a bug must not end the loop, because the next round may go well
                logger.exception("%s", self._name)
            # The pause is random, so that several processes do not do their rounds at the same time.
            self._stopped.wait(self._every_s * random.uniform(0.9, 1.1))  # noqa: S311

    def stop(self) -> None:
        """Make ``run`` return soon. The signal handler of the rescuer's process calls it."""
        self._stopped.set()

    def round(self) -> None:
        """Do one round. Log its OmniJobsError, unless the last round failed, too; raise any other exception."""
        if self._attempt(self._work) and self._beat_file is not None:
            self._beat_file.beat()

    def _attempt(self, action: Callable[[], None]) -> bool:
        """Return whether the action succeeded; log its OmniJobsError unless the last action failed, too."""
        try:
            action()
        except OmniJobsError as error:
            if not self._is_failing:
                logger.error("%s: %s", self._name, error)
            self._is_failing = True
            return False
        if self._is_failing:
            logger.info("%s: all services answer again", self._name)
        self._is_failing = False
        return True
