"""The rescuer: gives what a lost worker held to others, and hints again what waits unannounced.

A process of its own (``omni-jobs rescuer``); any number of them, on any host: what a
round does is one owner's transaction, and a doubled hint is harmless. In a thread of its
own it has the pruner (:mod:`omni_jobs.maintenance.pruner`), which a full store or a long list must
not let hold up a rescue.
"""

from __future__ import annotations

import logging
import random
import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING

from omni_jobs.broker.broker import Broker
from omni_jobs.broker.hints import HintPublisher
from omni_jobs.database.database import Database
from omni_jobs.errors import BrokerUnavailable, DatabaseUnavailable
from omni_jobs.jobs import Jobs
from omni_jobs.maintenance.pruner import Pruner
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.storage import open_store

if TYPE_CHECKING:
    from omni_jobs.settings import Settings

__all__ = ["Rescuer", "run"]

logger = logging.getLogger(__name__)

_PRUNER_ENDS_S = 5.0


class Rescuer:
    """``run`` does a round every ``every_s`` seconds until ``stop``; no outage of a service ends it."""

    def __init__(self, jobs: Jobs, publisher: HintPublisher, every_s: float) -> None:
        self._jobs = jobs
        self._publisher = publisher
        self._every_s = every_s
        self._stopped = threading.Event()
        self._troubled = False

    def run(self, database: Database) -> None:
        """Rescue until ``stop``, once ``database`` is there and has its schema."""
        there = False
        while not self._stopped.is_set():
            try:
                there = there or self._is_there(database)
                if there:
                    self.round()
            except Exception:
                # A bug must not leave lost work lying, and the next round may go well.
                logger.exception("rescuer")
            # Several rescuers must not march in step.
            self._stopped.wait(self._every_s * random.uniform(0.9, 1.1))  # noqa: S311

    def stop(self) -> None:
        """End ``run`` after the round it is in; safe from a signal handler."""
        self._stopped.set()

    def round(self) -> int:
        """Rescue once; how many stage runs were taken back. Logs what does not answer, and goes on."""
        freed = 0
        try:
            rescued = self._jobs.rescue()
            freed = rescued.freed
            if freed:
                logger.warning("took %d stage runs back from workers that are gone", freed)
            if rescued.expired:
                logger.info("%d jobs expired", rescued.expired)
            if rescued.hints:
                logger.info("%d hints again", len(rescued.hints))
                self._publisher.publish(rescued.hints)
        except (DatabaseUnavailable, BrokerUnavailable) as error:
            self._say_once(error)
        else:
            if self._troubled:
                logger.info("database and broker answer again")
            self._troubled = False
        return freed

    def _is_there(self, database: Database) -> bool:
        try:
            database.check()
        except DatabaseUnavailable as error:
            self._say_once(error)
            return False
        return True

    def _say_once(self, error: Exception) -> None:
        if not self._troubled:
            logger.error("%s", error)
        self._troubled = True


def run(settings: Settings) -> None:
    """Rescue and prune until SIGTERM or SIGINT. Raises ConfigError."""
    pipelines = load_pipelines(settings.resolved_stage_configs)
    database = Database(settings.resolved_database_url)
    jobs = Jobs(database, announce_after_s=settings.announce_after_s)
    rescuer = Rescuer(jobs, HintPublisher(Broker(settings, pipelines)), settings.rescue_every_s)
    pruner = Pruner(jobs, open_store(settings), settings)
    # A daemon: a hung object store must not keep the process from ending, and a pruner may end anywhere.
    pruning = threading.Thread(target=pruner.run, args=(database,), name="pruner", daemon=True)

    def stop(number: int, frame: FrameType | None) -> None:
        rescuer.stop()
        pruner.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    logger.info("rescuer: a round every %g s, pruner: every %g s", settings.rescue_every_s, settings.prune_every_s)
    pruning.start()
    try:
        rescuer.run(database)
    finally:
        pruner.stop()
        pruning.join(_PRUNER_ENDS_S)
        database.close()
