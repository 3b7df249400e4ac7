"""A job's media in the object store: put there before the job is written, deleted where it is not written."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import StorageError
from omni_jobs.storage import input_key

if TYPE_CHECKING:
    from omni_jobs.requests import Media
    from omni_jobs.storage import ObjectStore

logger = logging.getLogger(__name__)


def store_media(job_id: str, media: Sequence[Media], store: ObjectStore) -> list[dict[str, Any]]:
    """Put media under the keys of the job that is to be. Return for each what the job's row says of it.

    That is {key, size, digest, media_type}, in the order of ``media``. Raises StorageUnavailable.
    """
    stored = []
    for number, medium in enumerate(media):
        ref = store.put(input_key(job_id, number), [medium.data], media_type=medium.media_type)
        stored.append({**ref.model_dump(), "media_type": medium.media_type})
    return stored


def delete_media(media: Sequence[Mapping[str, Any]], store: ObjectStore) -> None:
    """Delete media that no job refers to. Media that cannot be deleted now expire as orphans."""
    if not media:
        return
    try:
        store.delete([medium["key"] for medium in media])
    except StorageError as error:
        logger.warning("%d media are left behind: %s", len(media), error)
