"""The hand-off: what earlier stages left for a stage run, and what it leaves for later ones and the user.

    source    in: the request, its media, the payloads of earlier stages
    payload   out: what later stages get
    complete  payload and artifacts stored, before anything says that they exist
    forget    what an attempt stored that lost

Storage calls block: whoever calls what touches the store does so on a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from omni_jobs.errors import ObjectCorrupt, PayloadCorrupt, PayloadTooLarge, StorageError
from omni_jobs.jobs import Claim, Completion, NewArtifact
from omni_jobs.payloads import Payload, PayloadLimits
from omni_jobs.storage import ObjectRef, ObjectStore, artifact_key, payload_key
from workers.stages.types import OmniModelRunnerOutput, StageInput

if TYPE_CHECKING:
    from workers.stages.stage import Stage

__all__ = ["HandOff"]

logger = logging.getLogger(__name__)


class HandOff:
    """One stage's; safe for threads."""

    def __init__(self, stage: Stage, store: ObjectStore, worker_id: str, *, inline_bytes: int) -> None:
        """``inline_bytes``: payloads up to that size stand in SQL."""
        self._stage = stage
        self._store = store
        self._worker_id = worker_id
        self._inline_bytes = inline_bytes
        self._limits = {
            name: PayloadLimits(max_bytes=config.max_payload_bytes) for name, config in stage.pipeline.stages.items()
        }

    # In.

    def needs_store(self, claim: Claim) -> bool:
        return bool(claim.media) or any(isinstance(payload, ObjectRef) for payload in claim.upstream.values())

    def source(self, claim: Claim) -> StageInput:
        """Raises StorageError, and PayloadError naming stage, key and field."""
        refs = [ObjectRef(key=item["key"], size=item["size"], digest=item["digest"]) for item in claim.media]
        return self._stage.input_of(
            job_id=claim.job_id,
            request=claim.request,
            media=[self._read(ref, max_bytes=ref.size) for ref in refs],
            upstream={stage: self._payload(stage, payload) for stage, payload in claim.upstream.items()},
            seed=claim.seed,
            capture=claim.has_consumers,
        )

    def _payload(self, stage: str, payload: ObjectRef | bytes | None) -> Payload:
        limits = self._limits[stage]
        if payload is None:
            raise PayloadCorrupt(f"stage {stage} left no payload", field=stage, stage=self._stage.name)
        if isinstance(payload, bytes):
            return Payload.decode(payload, limits, stage=self._stage.name)
        data = self._read(payload, max_bytes=limits.max_bytes)
        return Payload.decode(data, limits, key=payload.key, stage=self._stage.name)

    def _read(self, ref: ObjectRef, *, max_bytes: int) -> memoryview:
        """Damage may have happened on the way: a second look decides."""
        try:
            return self._store.read(ref, max_bytes=max_bytes)
        except ObjectCorrupt as error:
            logger.warning("read once more: %s", error)
            return self._store.read(ref, max_bytes=max_bytes)

    # Out.

    def payload(self, claim: Claim, stage_input: StageInput, output: OmniModelRunnerOutput) -> Payload | None:
        """What later stages get; None when there are none. Raises PayloadTooLarge."""
        if not claim.has_consumers:
            return None
        payload = self._stage.payload_of(output, stage_input, claim.attempt)
        size, most = payload.nbytes, self._stage.config.max_payload_bytes
        if size > most:
            key = payload_key(claim.job_id, claim.stage, claim.attempt)
            raise PayloadTooLarge(f"{size} bytes, the stage may make {most}", key=key, field="max_payload_bytes")
        return payload

    def fits_inline(self, payload: Payload | None) -> bool:
        return payload is None or payload.nbytes <= self._inline_bytes

    @property
    def makes_artifacts(self) -> bool:
        return self._stage.makes_artifacts

    def complete(
        self, claim: Claim, stage_input: StageInput, output: OmniModelRunnerOutput, payload: Payload | None
    ) -> Completion:
        """Store what there is. Raises StorageError; what was stored until then is deleted."""
        stored: list[ObjectRef] = []
        try:
            ref, inline = None, None
            if payload is not None and self.fits_inline(payload):
                inline = b"".join(payload.buffers())
            elif payload is not None:
                ref = self._store.put(payload_key(claim.job_id, claim.stage, claim.attempt), payload.buffers())
                stored.append(ref)
            artifacts = []
            for artifact in self._stage.artifacts_of(output):
                key = artifact_key(claim.job_id, claim.stage, claim.attempt, artifact.name)
                stored.append(self._store.put(key, [artifact.data], media_type=artifact.media_type))
                artifacts.append(NewArtifact(artifact.name, artifact.media_type, stored[-1]))
            return Completion(
                stage_run_id=claim.stage_run_id,
                attempt=claim.attempt,
                worker_id=self._worker_id,
                payload=ref,
                inline_payload=inline,
                payload_bytes=0 if payload is None else payload.nbytes,
                artifacts=artifacts,
                result=self._stage.result_of(output, stage_input),
                finish_reason=output.finish_reason,
                warnings=self._stage.warnings_of(output, stage_input),
            )
        except Exception:
            self._delete(stored)
            raise

    def forget(self, completion: Completion) -> None:
        """Delete what it stored."""
        refs = [artifact.ref for artifact in completion.artifacts]
        self._delete(refs + ([completion.payload] if completion.payload is not None else []))

    def _delete(self, refs: Sequence[ObjectRef]) -> None:
        if refs:
            try:
                self._store.delete([ref.key for ref in refs])
            except StorageError as error:
                logger.warning("%d objects nobody refers to stay: %s", len(refs), error)
