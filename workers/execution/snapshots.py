"""Snapshots on their way: stored while their stage run goes on, recorded by the ledger, loaded by the next attempt.

    of     the snapshots of a stage run that was claimed; ``load`` reads the one of an earlier attempt
    put    a new one is stored, then recorded; of those that come meanwhile the newest is next
    end    nothing more is stored; one that is too late for SQL is deleted

No trouble with a snapshot ends its stage run. It becomes a warning: without a new one a lost worker costs more steps,
without the old one all steps are taken again. The calls to the object store have threads of their own, because the
hand-off's must not wait for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from omni_jobs.errors import (
    Fenced,
    ModelError,
    OmniJobsError,
    PayloadTooLarge,
    StorageUnavailable,
)
from omni_jobs.jobs import Claim, Completion, NewSnapshot, StoredSnapshot
from omni_jobs.storage import ObjectRef, ObjectStore, snapshot_key
from workers.execution.handoff import delete_unrecorded, read_object
from workers.execution.ledger import Ledger
from workers.execution.snapshot_payload import decode_snapshot, encode_snapshot
from workers.stages.stage import Stage
from workers.stages.types import Snapshot

logger = logging.getLogger(__name__)

T = TypeVar("T")

_THREADS = 2


class StageSnapshots:
    """Stores and loads the snapshots of a worker's stage runs. On one event loop."""

    def __init__(self, stage: Stage, store: ObjectStore, ledger: Ledger, origin: Mapping[str, Any] | None) -> None:
        """Prepare the threads. ``origin``: the ``snapshot_origin`` of the stage's runner; None: it takes none."""
        pipeline = stage.pipeline
        of_pipeline = {"pipeline": pipeline.name, "pipeline_digest": pipeline.digest}
        self.origin = None if origin is None else {**of_pipeline, **origin}
        self.stage = stage.name
        self.max_bytes = stage.config.max_payload_bytes
        self.store = store
        self.ledger = ledger
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="snapshots")
        self._tasks: set[asyncio.Task[None]] = set()

    def of(self, claim: Claim) -> RunSnapshots:
        """Return the snapshots of a stage run that was claimed; nothing is loaded yet."""
        return RunSnapshots(self, claim)

    async def call(self, function: Callable[[], T]) -> T:
        """Call a function that blocks on one of the threads, and return its result."""
        return await asyncio.wrap_future(self._threads.submit(function))

    def keep(self, task: asyncio.Task[None]) -> None:
        """Keep a task until it is done, or until ``close`` cancels it."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Give up what is still being stored, without waiting for a call that hangs. What it leaves is an orphan."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.shutdown(wait=False)


class RunSnapshots:
    """The snapshots of one attempt of a stage run. Implements ``Snapshots``, which its runner calls."""

    def __init__(self, owner: StageSnapshots, claim: Claim) -> None:
        """Begin with nothing loaded and nothing stored."""
        self._owner = owner
        self._claim = claim
        self._newest: Snapshot | None = None
        self._loaded: StoredSnapshot | None = None  # that ``newest`` was read from, or the last that was tried
        self._next: Snapshot | None = None  # to be stored
        self._storing: asyncio.Task[None] | None = None
        self._number = 0  # of the last that was stored
        self._missed = 0
        self._last_miss: OmniJobsError | None = None
        self._refusal: OmniJobsError | None = None  # of the first that could not be used
        self._begins_anew = False  # because none could
        self._ended = False

    @property
    def newest(self) -> Snapshot | None:
        return self._newest

    # Load.

    async def load(self) -> None:
        """Load the snapshot that the claim gives, if there is one, or else the one before. One of no use is refused.

        Raises StorageUnavailable, because the next attempt may find the store well.
        """
        if self._claim.snapshot is None:
            return
        for stored in (self._claim.snapshot, self._claim.snapshot.before):
            if stored is None or self._newest is not None:
                break
            self._loaded = stored
            try:
                self._newest = await self._owner.call(partial(self._read, stored))
                self._begins_anew = False
            except StorageUnavailable:
                raise
            except OmniJobsError as error:
                self.refuse(error)

    def _read(self, stored: StoredSnapshot) -> Snapshot:
        origin, most = self._owner.origin, self._owner.max_bytes
        if origin is None:
            raise ModelError("the model cannot be resumed", field="component")
        data = read_object(self._owner.store, stored.ref, max_bytes=most)
        return decode_snapshot(data, self._claim, stored, origin, most)

    def refuse(self, error: OmniJobsError) -> None:
        error.stage = error.stage or self._owner.stage
        error.key = error.key or (None if self._loaded is None else self._loaded.ref.key)
        self._newest, self._begins_anew = None, True
        self._refusal = self._refusal or error
        logger.warning("stage run %d: a snapshot cannot be used: %s", self._claim.stage_run_id, error)

    # Store.

    def put(self, snapshot: Snapshot) -> None:
        if self._ended:
            return
        self._next = snapshot
        if self._storing is None:
            self._storing = asyncio.get_running_loop().create_task(self._store_all())
            self._owner.keep(self._storing)

    async def _store_all(self) -> None:
        """Store what comes, one after the other, until nothing waits."""
        try:
            while (snapshot := self._next) is not None:
                self._next = None
                await self._store(snapshot)
        finally:
            self._storing = None

    async def _store(self, snapshot: Snapshot) -> None:
        self._number += 1
        try:
            ref = await self._owner.call(partial(self._write, snapshot, self._number))
            claim, worker_id = self._claim, self._owner.ledger.worker.worker_id
            new = NewSnapshot(claim.stage_run_id, claim.attempt, worker_id, ref, snapshot.steps_done)
            if not await self._owner.ledger.record_snapshot(new):
                self.end()
                await self._owner.call(partial(delete_unrecorded, self._owner.store, [ref]))
        except Fenced:
            self.end()
        except OmniJobsError as error:
            self.miss(error)
        except Exception as error:
            logger.exception("stage run %d: a snapshot", self._claim.stage_run_id)
            self.miss(ModelError(f"{type(error).__name__}: {error}"))

    def _write(self, snapshot: Snapshot, number: int) -> ObjectRef:
        claim, origin, most = self._claim, self._owner.origin, self._owner.max_bytes
        key = snapshot_key(claim.job_id, claim.stage, claim.attempt, number)
        if origin is None:
            raise ModelError("the model cannot be resumed", field="component", key=key)
        payload = encode_snapshot(snapshot, claim, origin)
        if payload.nbytes > most:
            raise PayloadTooLarge(f"{payload.nbytes} bytes, at most {most}", key=key, field="max_payload_bytes")
        return self._owner.store.put(key, payload.buffers())

    def miss(self, error: OmniJobsError) -> None:
        error.stage = error.stage or self._owner.stage
        self._missed += 1
        self._last_miss = error
        logger.warning("stage run %d: a snapshot was not stored: %s", self._claim.stage_run_id, error)

    # The run's end.

    def end(self) -> None:
        """Store nothing more. What is being stored goes on, and is deleted if the attempt is over by then."""
        self._ended = True
        self._next = self._newest = None

    def warn(self, completion: Completion) -> Completion:
        """Return the completion with the warnings of this attempt's snapshots."""
        warnings = []
        if self._refusal is not None:
            where = "began anew" if self._begins_anew else "went on from the snapshot before the last"
            message = f"the {self._owner.stage} {where}, because its snapshot cannot be used: {self._refusal}"
            warnings.append({"code": "snapshot_unusable", "message": message})
        if self._last_miss is not None:
            count = "a snapshot was" if self._missed == 1 else f"{self._missed} snapshots were"
            message = f"{count} not stored: {self._last_miss}"
            warnings.append({"code": "snapshot_not_stored", "message": message})
        return replace(completion, warnings=[*completion.warnings, *warnings]) if warnings else completion
