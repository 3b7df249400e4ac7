"""Submission: what an admitted request becomes. Its media in the object store, and then its job, to be written."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import StorageError
from omni_jobs.jobs import NewJob, NewStage
from omni_jobs.storage import input_key

if TYPE_CHECKING:
    from omni_jobs.requests import Admitted
    from omni_jobs.storage import ObjectStore

__all__ = ["forget_media", "new_job", "store_media"]

logger = logging.getLogger(__name__)


def store_media(job_id: str, admitted: Admitted, store: ObjectStore) -> list[dict[str, Any]]:
    """Put the request's media where the job to be will look for them; what the job says of each, by number.

    Raises StorageUnavailable.
    """
    media = []
    for number, medium in enumerate(admitted.media):
        ref = store.put(input_key(job_id, number), [medium.data], media_type=medium.media_type)
        media.append({**ref.model_dump(), "media_type": medium.media_type})
    return media


def forget_media(media: Sequence[Mapping[str, Any]], store: ObjectStore) -> None:
    """Delete media that no job refers to; what cannot be deleted now expires as an orphan."""
    if not media:
        return
    try:
        store.delete([item["key"] for item in media])
    except StorageError as error:
        logger.warning("%d media are left behind: %s", len(media), error)


def new_job(
    job_id: str,
    admitted: Admitted,
    media: Sequence[Mapping[str, Any]],
    *,
    tenant: str = "default",
    expires_in_s: float | None = None,
) -> NewJob:
    """The job of an admitted request whose media are stored."""
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
        tenant=tenant,
        expires_at=admitted.expires_at,
        expires_in_s=expires_in_s,
    )
