"""Submission: an admitted request becomes a job. Media to the object store, then SQL, then hints."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import Conflict, StorageError
from omni_jobs.jobs import Hint, NewJob, NewStage, Submitted, new_job_id
from omni_jobs.storage import input_key

if TYPE_CHECKING:
    from omni_jobs.jobs import Jobs
    from omni_jobs.requests import Admitted
    from omni_jobs.storage import ObjectStore

__all__ = ["submit"]

logger = logging.getLogger(__name__)


def submit(
    admitted: Admitted,
    *,
    jobs: Jobs,
    store: ObjectStore,
    send: Callable[[Sequence[Hint]], object],
    idempotency_key: str | None = None,
    tenant: str = "default",
    expires_in_s: float | None = None,
) -> Submitted:
    """Store the job; ``send`` publishes its hints and must not raise: the rescuer repeats what is lost.

    Raises Conflict for an idempotency key that named another request, StorageUnavailable and
    DatabaseUnavailable. After the last the job may exist all the same: only an idempotency
    key makes it safe to try again.
    """
    job_id = new_job_id()
    keys = [input_key(job_id, number) for number in range(len(admitted.media))]
    media: list[dict[str, Any]] = []
    for key, medium in zip(keys, admitted.media, strict=True):
        ref = store.put(key, [medium.data], media_type=medium.media_type)
        media.append({**ref.model_dump(), "media_type": medium.media_type})
    try:
        submitted = jobs.submit(
            replace(_new_job(job_id, admitted, media), tenant=tenant, expires_in_s=expires_in_s),
            idempotency_key=idempotency_key,
        )
    except Conflict:
        _forget(store, keys)
        raise
    if not submitted.created:
        _forget(store, keys)
    send(submitted.hints)
    return submitted


def _new_job(job_id: str, admitted: Admitted, media: Sequence[dict[str, Any]]) -> NewJob:
    pipeline = admitted.pipeline
    return NewJob(
        job_id=job_id,
        pipeline=pipeline.name,
        pipeline_version=pipeline.version,
        pipeline_digest=pipeline.digest,
        request=admitted.request,
        modalities=admitted.modalities,
        stages=[
            NewStage(
                stage.name,
                tuple(stage.inputs),
                pipeline.queue(stage.name),
                retries=stage.retries,
                queue_limit_s=stage.queue_limit_s,
            )
            for stage in admitted.stages
        ],
        seed=admitted.seed,
        request_digest=admitted.request_digest,
        media=media,
        metadata=admitted.metadata,
        expires_at=admitted.expires_at,
    )


def _forget(store: ObjectStore, keys: Sequence[str]) -> None:
    """Delete media that no job refers to; what cannot be deleted now expires as an orphan."""
    try:
        store.delete(keys)
    except StorageError as error:
        logger.warning("%d media are left behind: %s", len(keys), error)
