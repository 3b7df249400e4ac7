"""``HandOff``: a stage run's payloads, media and artifacts, between the object store and its stage.

    load    the request, its media and the payloads of earlier stages become the stage's input
    store   the runner's output becomes stored artifacts, and a payload that is stored or stands in SQL
    forget  the objects of an attempt that was not recorded are deleted

Storage calls block, so the hand-off makes them on threads of its own. A call that hangs keeps its thread after its
stage run was cancelled, and the output's memory with it. When half of the threads hang the worker ends, to be started
anew. Artifacts are encoded on other threads.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from omni_jobs.errors import ObjectCorrupt, PayloadCorrupt, PayloadTooLarge, StorageError
from omni_jobs.jobs import Claim, Completion, StepSeconds, StoredArtifact
from omni_jobs.payloads import Payload
from omni_jobs.storage import ObjectRef, ObjectStore, artifact_key, payload_key
from workers.runners.model_threads import ModelThreads
from workers.stages.stage import Stage
from workers.stages.types import OmniModelRunnerOutput, StageInput, StageResult

logger = logging.getLogger(__name__)

T = TypeVar("T")

_THREADS = 8
_MOST_STUCK = _THREADS // 2
_ENCODING_THREADS = 4


def read_object(store: ObjectStore, ref: ObjectRef, *, max_bytes: int) -> memoryview:
    """Read an object; read a damaged one a second time, because the damage may have happened on the way."""
    try:
        return store.read(ref, max_bytes=max_bytes)
    except ObjectCorrupt as error:
        logger.warning("read once more: %s", error)
        return store.read(ref, max_bytes=max_bytes)


def delete_unrecorded(store: ObjectStore, refs: Sequence[ObjectRef]) -> None:
    """Delete objects to which nothing in SQL refers. A StorageError is logged, and they stay."""
    try:
        store.delete([ref.key for ref in refs])
    except StorageError as error:
        logger.warning("%d objects that nothing refers to stay: %s", len(refs), error)


class HandOff:
    """Loads stage inputs and stores outputs for the executor of one stage. All coroutines run on one event loop."""

    def __init__(
        self, stage: Stage, store: ObjectStore, worker_id: str, *, inline_bytes: int, on_broken: Callable[[str], None]
    ) -> None:
        """Prepare the threads for storage calls. Call it on the event loop.

        ``inline_bytes``: a payload up to that size is kept in SQL, a larger one in the object store.
        ``on_broken`` is called on the event loop, with the reason, when too many storage calls hang.
        """
        self._stage = stage
        self._store = store
        self._worker_id = worker_id
        self._inline_bytes = inline_bytes
        self._on_broken = on_broken
        self._max_bytes = {name: config.max_payload_bytes for name, config in stage.pipeline.stages.items()}
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="hand-off")
        self._encoding = ModelThreads(_ENCODING_THREADS, stage.name)
        self._stuck = 0  # threads in a call whose stage run was cancelled

    # Load.

    async def load(self, claim: Claim) -> StageInput[Any]:
        """Read a claimed stage run's media and payloads, and return its stage input.

        Raises StorageError, PayloadError naming stage, key and field, and InvalidRequest for a wrong parameter.
        """
        if claim.media or any(isinstance(payload, ObjectRef) for payload in claim.upstream.values()):
            return await self._in_thread(partial(self._load, claim))
        return self._load(claim)

    def _load(self, claim: Claim) -> StageInput[Any]:
        refs = [ObjectRef(key=item["key"], size=item["size"], digest=item["digest"]) for item in claim.media]
        return self._stage.input_of(
            job_id=claim.job_id,
            request=claim.request,
            media=[self._read(ref, f"media.{number}", max_bytes=ref.size) for number, ref in enumerate(refs)],
            upstream={stage: self._read_payload(claim, stage, stored) for stage, stored in claim.upstream.items()},
            seed=claim.seed,
            has_successors=claim.has_successors,
        )

    def _read_payload(self, claim: Claim, stage: str, stored: ObjectRef | bytes | None) -> Payload:
        """Return the payload that a stage left. Raises PayloadCorrupt, also for one of another job, stage or kind."""
        max_bytes = self._max_bytes[stage]
        if stored is None:
            raise PayloadCorrupt(f"stage {stage} left no payload", field=stage, stage=self._stage.name)
        if isinstance(stored, bytes):
            payload = Payload.decode(stored, max_bytes, stage=self._stage.name)
        else:
            data = self._read(stored, stage, max_bytes=max_bytes)
            payload = Payload.decode(data, max_bytes, key=stored.key, stage=self._stage.name)
        due = {
            "job_id": claim.makers.get(stage, claim.job_id),
            "stage": stage,
            "kind": self._stage.pipeline.stage(stage).produces,
        }
        for name, value in due.items():
            if (found := getattr(payload.manifest, name)) != value:
                raise PayloadCorrupt(
                    f"{found!r}, not {value!r}", field=f"manifest.{name}", key=payload.key, stage=self._stage.name
                )
        return payload

    def _read(self, ref: ObjectRef, field: str, *, max_bytes: int) -> memoryview:
        """Return what ``read_object`` does. Raises StorageError, which names ``field``."""
        try:
            return read_object(self._store, ref, max_bytes=max_bytes)
        except StorageError as error:
            error.field = error.field or field
            raise

    # Store.

    async def store(
        self,
        claim: Claim,
        stage_input: StageInput[Any],
        output: OmniModelRunnerOutput,
        device_s: float = 0.0,
        steps: Callable[[], StepSeconds | None] = lambda: None,
    ) -> Completion:
        """Store an output's payload and artifacts, and return the completion, which the ledger is to record.

        ``device_s``: the seconds on devices that the attempt has had. ``steps`` is asked for those of its steps when
        all is stored, on any thread. The output's hidden states are freed in any case. Raises StorageError,
        PayloadTooLarge, and StageError or PayloadError for an output that cannot be encoded; objects stored until then
        are deleted.
        """
        free: Callable[[], None] | None = None
        try:
            if isinstance(output, OmniModelRunnerOutput):  # of another ``finish`` says what it is
                free = output.free
            finish = partial(self._stage.finish, output, stage_input, claim.attempt)
            # To encode artifacts takes long. It has threads of its own, so that no load waits for it.
            result = await self._encoding.run(finish) if self._stage.makes_artifacts else finish()
            store = partial(self._store_objects, claim, result, device_s, steps)
            is_large = result.payload is not None and result.payload.nbytes > self._inline_bytes
            if not is_large and not result.artifacts:
                return store()
            on_thread, free = self._in_thread(store, free), None
            return await on_thread
        finally:
            if free is not None:
                free()

    def _store_objects(
        self, claim: Claim, result: StageResult, device_s: float, steps: Callable[[], StepSeconds | None]
    ) -> Completion:
        """Store the artifacts, and the payload unless it is small enough for SQL; return the completion."""
        payload, size = result.payload, 0 if result.payload is None else result.payload.nbytes
        most = self._stage.config.max_payload_bytes
        if size > most:
            key = payload_key(claim.job_id, claim.stage, claim.attempt)
            raise PayloadTooLarge(f"{size} bytes, the stage may make {most}", key=key, field="max_payload_bytes")
        stored: list[ObjectRef] = []
        try:
            ref, inline = None, None
            if payload is not None and size <= self._inline_bytes:
                inline = b"".join(payload.buffers())
            elif payload is not None:
                key = payload_key(claim.job_id, claim.stage, claim.attempt)
                ref = self._store.put(key, payload.buffers())
                stored.append(ref)
            artifacts = []
            for artifact in result.artifacts:
                key = artifact_key(claim.job_id, claim.stage, claim.attempt, artifact.name)
                stored.append(self._store.put(key, [artifact.data], media_type=artifact.media_type))
                artifacts.append(StoredArtifact(artifact.name, artifact.media_type, stored[-1]))
            return Completion(
                stage_run_id=claim.stage_run_id,
                attempt=claim.attempt,
                worker_id=self._worker_id,
                payload=ref,
                inline_payload=inline,
                payload_bytes=size,
                artifacts=artifacts,
                result=result.result,
                finish_reason=result.finish_reason,
                warnings=result.warnings,
                made=result.made,
                device_s=device_s,
                steps=steps(),
            )
        except Exception:
            delete_unrecorded(self._store, stored)
            raise

    async def forget(self, completion: Completion) -> None:
        """Delete the objects of a completion that SQL did not take. A StorageError is logged, and the objects stay."""
        refs = [artifact.ref for artifact in completion.artifacts]
        if completion.payload is not None:
            refs.append(completion.payload)
        if refs:
            await self._in_thread(partial(delete_unrecorded, self._store, refs))

    # The threads.

    async def _in_thread(self, function: Callable[[], T], free: Callable[[], None] | None = None) -> T:
        """Return what the function returns on a thread.

        ``free`` is called on the event loop once the thread is done.
        """
        call = self._threads.submit(function)
        if free is not None:
            call.add_done_callback(lambda _: self._on_loop(free))
        try:
            return await asyncio.wrap_future(call)
        except asyncio.CancelledError:
            if not call.cancel() and not call.done():
                self._stuck += 1
                call.add_done_callback(lambda _: self._on_loop(self._unstick))
                if self._stuck >= _MOST_STUCK:
                    self._on_broken(f"{self._stuck} storage calls hang")
            raise

    def _on_loop(self, function: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(function)

    def _unstick(self) -> None:
        self._stuck -= 1

    async def close(self) -> None:
        """End the threads, without waiting for a storage call that hangs."""
        self._threads.shutdown(wait=False)
        await self._encoding.close()
