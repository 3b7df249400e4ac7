"""The pruner: it deletes what was kept long enough, first in SQL and then in the object store. One round

    hastens   at the start and with each sweep: makes due what a shortened retention keeps no longer; and deletes what
              tenants used on days of long ago, and who did what
    prunes    deletes in SQL what is due, and notes its objects as garbage
    collects  deletes these objects, then the notes
    sweeps    now and then: lists the whole store and deletes the objects that no row refers to (orphans), such as
              those of lost attempts

Any number of pruners may run, on any host; each rescuer's process has one as a thread. A pruner may be killed anywhere,
because the next one deletes what is noted, and the sweep finds what nobody noted. It may be stopped for an hour and go
on, because an object that SQL no longer needs is never needed again: its key holds the attempt's number, and no number
comes twice.
"""

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from omni_jobs.errors import OmniJobsError, StorageError
from omni_jobs.jobs import Garbage, Jobs, PruneResult, Retention
from omni_jobs.maintenance.rounds import Rounds
from omni_jobs.metrics.rescuer_metrics import RescuerMetrics
from omni_jobs.settings import Settings
from omni_jobs.storage import ObjectStore
from omni_jobs.storage.keys import JOBS
from omni_jobs.tenants.sessions import Sessions

logger = logging.getLogger(__name__)

_JOBS_AT_ONCE = 500
_NOTES_AT_ONCE = 500
_KEYS_AT_ONCE = 500
_MOST_LOGGED_KEYS = 1000
_BROKEN_SWEEP_PAUSE_S = 60.0


@dataclass(frozen=True, slots=True)
class PrunerPass:
    """What ``Pruner.once`` returns: the numbers of jobs, events and objects that it deleted."""

    payloads: int = 0  # jobs whose payloads were deleted
    inputs: int = 0  # jobs whose media were deleted
    artifacts: int = 0  # jobs whose artifacts were deleted
    jobs: int = 0  # jobs that were deleted as a whole
    events: int = 0
    objects: int = 0  # objects that were noted as garbage
    orphans: int = 0  # objects that no row referred to
    sessions: int = 0  # of browsers, that had ended
    days: int = 0  # of long ago, with what a stage used of one tenant's
    acts: int = 0  # of the audit
    actions: int = 0  # on many jobs, that had ended


class Pruner(Rounds):
    """Deletes what was kept long enough, every ``prune_every_s``; and orphaned objects, every ``sweep_every_s``."""

    def __init__(
        self,
        jobs: Jobs,
        store: ObjectStore,
        settings: Settings,
        *,
        sessions: Sessions | None = None,
        metrics: RescuerMetrics | None = None,
    ) -> None:
        """``sessions``: those of the dashboard; None leaves them alone."""
        super().__init__("pruner", settings.prune_every_s)
        self._metrics = metrics or RescuerMetrics()
        self._sessions = sessions
        self._jobs = jobs
        self._store = store
        self._retention = Retention.of(settings)
        self._keep_usage_s = settings.keep_usage_s
        self._keep_audit_s = settings.keep_audit_s
        self._sweep_every_s = settings.sweep_every_s
        self._orphan_after_s = settings.orphan_after_s
        # The kinds of owners of objects, by the beginning of their keys: what tells the orphans among such keys.
        self._orphans_of: Mapping[str, Callable[[Sequence[str]], set[str]]] = {JOBS: jobs.orphans}
        self._undeletable: set[str] = set()  # keys of objects whose error was logged
        # The first sweep comes at a random time, because pruners that start together must not sweep together.
        self._sweep_at = time.monotonic() + random.uniform(0, self._sweep_every_s)  # noqa: S311
        self._sweep: Iterator[int] | None = None
        self._hasten_at = time.monotonic()

    def _work(self) -> None:
        if time.monotonic() >= self._hasten_at:
            self.hasten()
            self._jobs.prune_usage(self._keep_usage_s)
            self._prune_in_parts(self._jobs.prune_audit)
            self._prune_in_parts(self._jobs.prune_actions)
            self._hasten_at = time.monotonic() + self._sweep_every_s
        pruned = self.prune()
        objects = self.collect()
        self._prune_sessions()
        orphans = self._continue_sweep()
        self._metrics.pruned.inc(pruned.jobs)
        self._metrics.deleted.labels("garbage").inc(objects)
        self._metrics.deleted.labels("orphan").inc(orphans)
        if pruned.jobs or orphans:
            logger.info("pruner: deleted %d jobs, %d objects, %d orphans", pruned.jobs, objects, orphans)

    def once(self) -> PrunerPass:
        """Hasten, prune, collect and sweep the whole store once, and return the numbers.

        Raises DatabaseUnavailable and StorageError.
        """
        self.hasten()
        pruned = self.prune()._asdict()
        del pruned["checked"]
        objects, orphans = self.collect(), sum(self.sweep())
        others = {
            "days": self._jobs.prune_usage(self._keep_usage_s),
            "acts": self._prune_in_parts(self._jobs.prune_audit),
            "actions": self._prune_in_parts(self._jobs.prune_actions),
        }
        return PrunerPass(**pruned, objects=objects, orphans=orphans, sessions=self._prune_sessions(), **others)

    # Prune

    def hasten(self) -> None:
        """Make due what the retention keeps no longer, of jobs that ended under a longer one.

        It reads every ended job, some thousands in a transaction. Raises DatabaseUnavailable.
        """
        after = None
        while not self._stopped.is_set() and (after := self._jobs.hasten(self._retention, after)) is not None:
            pass

    def prune(self) -> PruneResult:
        """Delete in SQL all that is due, note its objects as garbage, and return the numbers of each kind of data.

        Raises DatabaseUnavailable.
        """
        total = PruneResult()
        while not self._stopped.is_set():
            pruned = self._jobs.prune(self._retention, at_most=_JOBS_AT_ONCE)
            if not pruned.checked and not pruned.events:
                break
            total = PruneResult(*map(sum, zip(total, pruned, strict=True)))
        return total

    def _prune_in_parts(self, prune: Callable[[float], int]) -> int:
        """Delete what is older than the audit is kept, and return the number of it."""
        total = 0
        while not self._stopped.is_set() and (gone := prune(self._keep_audit_s)):
            total += gone
        return total

    def _prune_sessions(self) -> int:
        return 0 if self._sessions is None else self._sessions.prune()

    # Collect

    def collect(self) -> int:
        """Delete the objects that are noted as garbage, then the notes, and return the number of objects.

        The note of an object that cannot be deleted stays. Raises DatabaseUnavailable and StorageError.
        """
        total = last = 0
        while not self._stopped.is_set() and (garbage := self._jobs.garbage(_NOTES_AT_ONCE, after=last)):
            deleted, count = self._delete_garbage(garbage)
            self._jobs.forget_garbage(deleted)
            total += count
            last = garbage[-1].id
        return total

    def _delete_garbage(self, garbage: Sequence[Garbage]) -> tuple[list[int], int]:
        """Return the ids of the garbage of which nothing is left, and the number of objects deleted."""
        shared = self._jobs.still_shared(garbage)
        keys = {item.what for item in garbage if not item.what.endswith("/")}
        deleted = self._delete_objects(sorted(keys - shared))
        over = shared.union(deleted)  # who refers to a shared object notes it again as it lets go
        done, count = [item.id for item in garbage if item.what in over], len(deleted)
        for item in garbage:
            if item.what.endswith("/"):
                is_done, under_prefix = self._delete_prefix(item.what)
                count += under_prefix
                if is_done:
                    done.append(item.id)
        return done, count

    def _delete_prefix(self, prefix: str) -> tuple[bool, int]:
        """Delete the objects below a prefix; return whether all could be deleted, and the number of them.

        Leaves the objects that SQL refers to now: the job may have been retried since this garbage was noted.
        """
        is_done, count = True, 0
        for batch in _batches(stored.key for stored in self._store.list(prefix)):
            orphans = sorted(self._orphans_of[prefix.partition("/")[0]](batch))
            deleted = self._delete_objects(orphans)
            is_done &= len(deleted) == len(orphans)
            count += len(deleted)
        return is_done, count

    def _delete_objects(self, keys: Sequence[str]) -> Sequence[str]:
        """Delete objects; return the keys of those that are gone, none while a backup holds deletes.

        Raises StorageUnavailable when the store is away.
        """
        if not keys or self._jobs.deletes_are_held():
            return []
        try:
            self._store.delete(keys)
        except StorageError:
            self._store.check()
        else:
            return keys
        # The store answers: one object cannot be deleted, which must not keep the others for ever.
        deleted = []
        for key in keys:
            try:
                self._store.delete([key])
            except StorageError as error:
                if key not in self._undeletable and len(self._undeletable) < _MOST_LOGGED_KEYS:
                    self._undeletable.add(key)
                    logger.error("pruner: an object cannot be deleted: %s", error)
            else:
                deleted.append(key)
        return deleted

    # Sweep

    def sweep(self) -> Iterator[int]:
        """List the whole store in batches and delete the old orphans of each; yield their number after each batch.

        The iteration raises DatabaseUnavailable and StorageError. Orphans younger than ``orphan_after_s`` stay.
        """
        self._store.remove_abandoned()
        # Younger objects may be of a stage run or a submit that SQL does not know of yet.
        newest = time.time() - self._orphan_after_s
        for kind, orphans in self._orphans_of.items():
            keys = (stored.key for stored in self._store.list(f"{kind}/") if stored.modified.timestamp() < newest)
            for batch in _batches(keys):
                yield len(self._delete_objects(sorted(orphans(batch))))

    def _continue_sweep(self) -> int:
        """Sweep for about as long as the pause between rounds, if a sweep is due; return the number of orphans."""
        if self._sweep is None:
            if time.monotonic() < self._sweep_at:
                return 0
            self._sweep = self.sweep()
        until = time.monotonic() + self._every_s
        deleted = 0
        try:
            for count in self._sweep:
                deleted += count
                if self._stopped.is_set() or time.monotonic() >= until:
                    return deleted
        except OmniJobsError:
            self._end_sweep(min(self._sweep_every_s, _BROKEN_SWEEP_PAUSE_S))
            raise
        self._end_sweep(self._sweep_every_s * random.uniform(0.9, 1.1))  # noqa: S311
        return deleted

    def _end_sweep(self, pause_s: float) -> None:
        self._sweep = None
        self._sweep_at = time.monotonic() + pause_s


def _batches(keys: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(keys)
    while batch := list(islice(remaining, _KEYS_AT_ONCE)):
        yield batch
