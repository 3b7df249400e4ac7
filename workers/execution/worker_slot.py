"""``WorkerSlot``: a worker's place under its node name, and the lease that holds it.

    take → renew … → serve → renew … → retire

A worker takes its slot before it loads its engine, because the stage runs of a killed predecessor wait for that.
While the worker lives and renews its lease, no other worker gets the slot.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from omni_jobs.errors import DatabaseUnavailable, Fenced, SlotTaken
from omni_jobs.jobs import Jobs, NewWorker, Renewal, SlotHolder, paused_since
from omni_jobs.settings import Settings
from workers.execution import incarnation

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
# A holder that may live is watched for this many of its heartbeats, and some seconds more for a slow database.
_WATCH_BEATS = 3
_WATCH_MORE_S = 2.0
_DATABASE_WAS_AWAY_S = 0.5  # a query that took longer


class WorkerSlot:
    """Takes, renews and retires a worker's row in SQL, for its ledger. Safe for threads; all but ``stop`` block."""

    def __init__(self, jobs: Jobs, worker: NewWorker, settings: Settings, keep_trying: Callable[[], bool]) -> None:
        """Prepare; nothing is written yet. ``keep_trying`` is asked whether to wait on for a database that is away."""
        self.worker = worker
        self._jobs = jobs
        self._keep_trying = keep_trying
        self._lease_s = settings.lease_s
        self._heartbeat_s = settings.heartbeat_s
        self._registering = threading.Lock()
        self._serves = False  # under ``_registering``
        self._ended: Fenced | None = None  # why ``serve`` must not begin any more
        self._stopped = threading.Event()

    def take(self) -> Collection[str]:
        """Make the slot this worker's, and return the queues to ring for a predecessor's stage runs.

        Waits while the database is away, and some heartbeats while nobody can tell whether the slot's holder lives.
        A holder's process that is stopped counts as dead, and is killed.
        Raises SlotTaken when the holder lives or ``stop`` ends the wait, and DatabaseUnavailable once ``keep_trying``
        returns False.
        """
        while True:
            holder = self._persist(lambda: self._jobs.slot_holder(self.worker.slot))
            if holder is not None:
                self._refuse_if_alive(holder)
            try:
                queues = self._persist(partial(self._register, instead_of=holder))
                break
            except SlotTaken as error:  # it renewed a moment ago, or another worker came first
                logger.warning("%s meanwhile", error)
        if holder is not None:
            self._kill_if_stopped(holder)
        return queues

    def serve(self) -> Collection[str]:
        """Record that the engine is loaded; from then on the worker may claim.

        Return the queues to ring for another worker's stage runs, if one had the slot while this lease was over. Raises
        Fenced when the worker was fenced or asked to stop, and the errors of ``take``.
        """
        return self._persist(self._register_serving)

    def is_paused(self) -> bool:
        """Return whether the stage is paused. Raises DatabaseUnavailable once ``keep_trying`` returns False."""
        pipeline, stage = self.worker.stage
        paused = self._persist(self._jobs.paused_stages)
        return paused_since(paused, pipeline.name, self.worker.pipeline_version, stage) is not None

    def describe(self, info: Mapping[str, Any]) -> None:
        """Say what ``serve`` records of this worker's process, a WorkerInfo as JSON. Call it before."""
        with self._registering:
            self.worker = replace(self.worker, info=info)

    def renew(self, run_s: float | None, stats: Mapping[str, Any] | None = None) -> Renewal | None:
        """Renew the lease, and return the renewal. The arguments are those of :meth:`omni_jobs.jobs.Jobs.renew`.

        Raises Fenced when the lease is lost. Before ``serve`` it takes a lost lease again, returns None, and raises
        SlotTaken when another worker has the slot. Raises DatabaseUnavailable at once.
        """
        with self._registering:
            if not self._serves:  # nothing is held, so a lease that ran out meanwhile may be taken again
                self._register()
                return None
        return self._jobs.renew(self.worker.worker_id, self._lease_s, run_s, stats)

    def stop(self, fenced: Fenced | None = None) -> None:
        """End ``take``'s wait for a holder, and make a later ``serve`` raise ``fenced``, else a Fenced of its own."""
        self._ended = fenced or self._ended or Fenced("this worker was asked to stop")
        self._stopped.set()

    def retire(
        self, fenced: Fenced | None = None, stats: Mapping[str, Any] | None = None, *, engine_down: bool = False
    ) -> Collection[str]:
        """End the lease, queue what this worker holds, and return the queues to ring. Call ``stop`` before.

        ``fenced``: why its lease was lost, which then fails their attempts; None: it was not. ``stats``: its counts.
        ``engine_down``: it ends because its engine died, hangs or cannot be loaded.
        """
        with self._registering:  # a ``serve`` under way ends first; a later one sees that it must not begin
            worker_id = self.worker.worker_id
            return self._jobs.retire_worker(worker_id, fenced=fenced, stats=stats, engine_down=engine_down)

    # The life of the slot's holder.

    def _refuse_if_alive(self, holder: SlotHolder) -> None:
        """Raise SlotTaken when the holder lives; return when it is dead.

        A process that can be seen from here proves it either way: alive, it may still be unable to renew, because
        the database is busy. A stopped process counts as dead, because it may never go on.
        """
        if not holder.has_lease:
            logger.warning("worker %s had this slot, and its lease is over", holder.worker_id)
            return
        state = incarnation.state(holder.pid, holder.pid_space, holder.pid_started)
        if state == "runs":
            raise self._taken(holder)
        if state != "gone":
            self._refuse_if_renewed(holder)
        logger.warning("worker %s (pid %d on %s) had this slot and is dead", holder.worker_id, holder.pid, holder.host)

    def _refuse_if_renewed(self, holder: SlotHolder) -> None:
        """Watch the holder for some of its heartbeats. Raise SlotTaken when it renews its lease."""
        pause = self._heartbeat_s / 2
        watch_s = _WATCH_BEATS * holder.heartbeat_s + _WATCH_MORE_S
        left = watch_s
        while left > 0:
            if self._stopped.wait(pause):
                raise SlotTaken(f"slot {self.worker.slot} may be taken: asked to stop before that was known")
            left -= pause
            asked_at = time.monotonic()
            seen = self._persist(lambda: self._jobs.slot_holder(self.worker.slot))
            if time.monotonic() - asked_at > _DATABASE_WAS_AWAY_S:  # from the holder as well, which tries again later
                left = watch_s + _LONGEST_PAUSE_S
            if seen is None or not seen.has_lease:
                return
            if seen.worker_id != holder.worker_id or seen.renewed_at != holder.renewed_at:
                raise self._taken(seen)

    def _taken(self, holder: SlotHolder) -> SlotTaken:
        return SlotTaken(
            f"slot {self.worker.slot} is taken: worker {holder.worker_id} lives there, "
            f"pid {holder.pid} on host {holder.host}. Give this worker a slot of its own: another name "
            "(omni-jobs worker --slot, celery -n), or another hostname where the name ends with @%h"
        )

    def _kill_if_stopped(self, holder: SlotHolder) -> None:
        """Kill the process that lost its slot if it is stopped, so that its engine frees the device's memory."""
        if incarnation.state(holder.pid, holder.pid_space, holder.pid_started) == "stopped":
            logger.warning("process %d, which had this slot, is stopped: killed", holder.pid)
            try:
                os.kill(holder.pid, signal.SIGKILL)
            except OSError as error:
                logger.warning("process %d, which had this slot, cannot be killed: %s", holder.pid, error)

    # Its row.

    def _register(self, instead_of: SlotHolder | None = None) -> Collection[str]:
        return self._jobs.register_worker(self.worker, self._lease_s, instead_of=instead_of, loading=True)

    def _register_serving(self) -> Collection[str]:
        with self._registering:  # ``renew`` must not write afterwards that the engine is being loaded
            if self._ended is not None:
                raise self._ended
            queues = self._jobs.register_worker(self.worker, self._lease_s)
            self._serves = True
        return queues

    def _persist(self, call: Callable[[], T]) -> T:
        """Return the call's result; call again while the database is away. Raises its error when told to give up."""
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return call()
            except DatabaseUnavailable as error:
                logger.error("the database has no place for this worker yet: %s", error)
                if not self._keep_trying():
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
