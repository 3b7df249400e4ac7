"""The pruner: what has been kept long enough goes, first in SQL, then in the object store.

It runs in a thread of the rescuer's process; any number of them, on any host. A round

    prunes    SQL forgets what is due, and writes down the objects that go with it (garbage)
    collects  deletes those objects, then the note of them
    sweeps    now and then: looks through the whole store for objects that nothing refers to,
              such as those of lost attempts

A pruner may be killed anywhere in between: what is noted is deleted by the next one, and
objects nobody noted are found by the sweep. An object is deleted only when SQL has no
use for it and never will: keys hold the attempt's number, and no number comes twice. So a
pruner that was stopped for an hour does no harm either when it goes on.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from omni_jobs.errors import OmniJobsError, StorageError
from omni_jobs.jobs import PruneResult, Retention

if TYPE_CHECKING:
    from omni_jobs.database.database import Database
    from omni_jobs.jobs import Garbage, Jobs
    from omni_jobs.settings import Settings
    from omni_jobs.storage import ObjectStore

__all__ = ["Pruner", "PrunerPass"]

logger = logging.getLogger(__name__)

_JOBS_AT_ONCE = 500
_KEYS_AT_ONCE = 500
_MOST_SAID = 1000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PrunerPass:
    """What went: of how many jobs the payloads, inputs, artifacts; jobs whole; events; objects."""

    payloads: int = 0
    inputs: int = 0
    artifacts: int = 0
    jobs: int = 0
    events: int = 0
    objects: int = 0
    orphans: int = 0  # objects that no row told of


class Pruner:
    """``run`` does a round every ``prune_every_s`` until ``stop``; no outage of a service ends it."""

    def __init__(self, jobs: Jobs, store: ObjectStore, settings: Settings) -> None:
        self._jobs = jobs
        self._store = store
        self._retention = Retention.of(settings)
        self._every_s = settings.prune_every_s
        self._sweep_every_s = settings.sweep_every_s
        self._orphan_after_s = settings.orphan_after_s
        self._stopped = threading.Event()
        self._troubled = False
        self._stuck: set[str] = set()  # objects that could not be deleted, which is said once
        # Several pruners, or one that restarts again and again, must not all sweep at their start.
        self._sweep_at = time.monotonic() + random.uniform(0, self._sweep_every_s)  # noqa: S311
        self._sweeping: Iterator[int] | None = None

    def run(self, database: Database) -> None:
        """Prune until ``stop``, once ``database`` is there and has its schema."""
        ready = False
        while not self._stopped.is_set():
            try:
                if not ready:
                    database.check()
                    ready = True
                self._round()
            except OmniJobsError as error:
                if not self._troubled:
                    logger.error("pruner: %s", error)
                self._troubled = True
            except Exception:
                # A bug here must not take the rescuer with it, and the next round may go well.
                logger.exception("pruner")
            else:
                if self._troubled:
                    logger.info("pruner: database and object store answer again")
                self._troubled = False
            self._stopped.wait(self._every_s * random.uniform(0.9, 1.1))  # noqa: S311

    def stop(self) -> None:
        """End ``run`` soon; safe from a signal handler."""
        self._stopped.set()

    def _round(self) -> None:
        pruned = self.prune()
        objects = self.collect()
        orphans = self._sweep_some()
        if pruned.jobs or orphans:
            logger.info("pruner: %d jobs, %d objects, %d orphans gone", pruned.jobs, objects, orphans)

    def once(self) -> PrunerPass:
        """A whole pass: prune, collect, sweep. Raises DatabaseUnavailable and StorageError."""
        pruned = self.prune()
        return PrunerPass(
            payloads=pruned.payloads,
            inputs=pruned.inputs,
            artifacts=pruned.artifacts,
            jobs=pruned.jobs,
            events=pruned.events,
            objects=self.collect(),
            orphans=sum(self.sweep()),
        )

    def prune(self) -> PruneResult:
        """Let SQL forget what is due, until nothing is left."""
        total = PruneResult()
        while not self._stopped.is_set():
            found = self._jobs.prune(self._retention, at_most=_JOBS_AT_ONCE)
            if not found.looked_at and not found.events:
                break
            total = _sum(total, found)
        return total

    def collect(self) -> int:
        """Delete the objects of the garbage there is; how many. What cannot be deleted stays noted."""
        deleted = 0
        while not self._stopped.is_set():
            found = self._jobs.garbage(at_most=_JOBS_AT_ONCE)
            done, count = self._delete(found)
            if not done:
                break
            self._jobs.collected(done)
            deleted += count
        return deleted

    def sweep(self) -> Iterator[int]:
        """Go through the store batch by batch, deleting orphans; how many of each batch."""
        self._store.remove_abandoned()
        old_enough = time.time() - self._orphan_after_s
        keys = (found.key for found in self._store.list("jobs/") if found.modified.timestamp() < old_enough)
        for batch in _batches(keys, _KEYS_AT_ONCE):
            yield len(self._delete_keys(sorted(self._jobs.orphans(batch))))

    def _delete(self, garbage: Sequence[Garbage]) -> tuple[list[int], int]:
        """The ids of garbage that is gone, and how many objects that were."""
        single = {found.what: found.id for found in garbage if not found.what.endswith("/")}
        gone = self._delete_keys(list(single))
        done, deleted = [single[key] for key in gone], len(gone)
        for found in garbage:
            if found.what.endswith("/"):
                whole = True
                listed = (stored.key for stored in self._store.list(found.what))
                for batch in _batches(listed, _KEYS_AT_ONCE):
                    # Since this garbage was noted the job may have been sent on again, and this
                    # process may have slept: what is needed now is not what was needed then.
                    useless = sorted(self._jobs.orphans(batch))
                    gone = self._delete_keys(useless)
                    whole &= len(gone) == len(useless)
                    deleted += len(gone)
                if whole:
                    done.append(found.id)
        return done, deleted

    def _delete_keys(self, keys: Sequence[str]) -> Sequence[str]:
        """Delete objects; those that are gone. Raises StorageUnavailable when the store itself is away."""
        try:
            self._store.delete(keys)
        except StorageError:
            self._store.check()
        else:
            return keys
        # It is well: one object is not, and must not keep the others for ever.
        gone = []
        for key in keys:
            try:
                self._store.delete([key])
            except StorageError as error:
                if key not in self._stuck and len(self._stuck) < _MOST_SAID:
                    self._stuck.add(key)
                    logger.error("pruner: cannot be deleted: %s", error)
            else:
                gone.append(key)
        return gone

    def _sweep_some(self) -> int:
        """The next part of a sweep, for about as long as a round's pause; how many orphans went."""
        if self._sweeping is None:
            if time.monotonic() < self._sweep_at:
                return 0
            self._sweeping = self.sweep()
        until = time.monotonic() + self._every_s
        deleted = 0
        try:
            for count in self._sweeping:
                deleted += count
                if self._stopped.is_set() or time.monotonic() >= until:
                    return deleted
        except OmniJobsError:
            self._sweeping = None  # a broken sweep begins anew, when its time has come
            self._sweep_at = time.monotonic() + min(self._sweep_every_s, 60.0)
            raise
        self._sweeping = None
        self._sweep_at = time.monotonic() + self._sweep_every_s * random.uniform(0.9, 1.1)  # noqa: S311
        return deleted


def _sum(one: PruneResult, other: PruneResult) -> PruneResult:
    return PruneResult(
        looked_at=one.looked_at + other.looked_at,
        payloads=one.payloads + other.payloads,
        inputs=one.inputs + other.inputs,
        artifacts=one.artifacts + other.artifacts,
        jobs=one.jobs + other.jobs,
        events=one.events + other.events,
    )


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    waiting = iter(items)
    while batch := list(islice(waiting, size)):
        yield batch
