"""The object store: a local directory or S3, behind one small interface; and a cache of this host before either."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from omni_jobs.errors import ConfigError
from omni_jobs.storage.keys import artifact_key, input_key, job_prefix, payload_key
from omni_jobs.storage.local import LocalObjectStore
from omni_jobs.storage.object_store import ObjectRef, ObjectStore, StoredObject

if TYPE_CHECKING:
    from omni_jobs.settings import Settings

__all__ = [
    "LocalObjectStore",
    "ObjectRef",
    "ObjectStore",
    "StoredObject",
    "artifact_key",
    "input_key",
    "job_prefix",
    "open_store",
    "payload_key",
]


def open_store(settings: Settings) -> ObjectStore:
    """The object store of ``storage_url``, behind a cache of this host where ``host_cache_dir`` names one.

    ``storage_url``: ``file:///directory`` or ``s3://bucket/prefix``. Raises ConfigError for another URL.
    The store may be away: it is asked for nothing yet.
    """
    store = _open_plain(settings)
    if settings.host_cache_dir is None:
        return store
    from omni_jobs.storage.host_cache import HostCache

    return HostCache(
        store,
        settings.host_cache_dir,
        max_bytes=settings.host_cache_bytes,
        namespace=f"{settings.s3_endpoint_url or ''} {settings.resolved_storage_url}",
    )


def _open_plain(settings: Settings) -> ObjectStore:
    url = urlsplit(settings.resolved_storage_url)
    if url.query or url.fragment or "@" in url.netloc:
        raise ConfigError("takes no credentials, query or fragment", field="storage_url")
    if url.scheme == "file":
        if url.netloc not in ("", "localhost") or not url.path.startswith("/"):
            raise ConfigError("needs an absolute path: file:///directory", field="storage_url")
        return LocalObjectStore(
            Path(unquote(url.path)), sync=settings.storage_sync, min_free_bytes=settings.min_free_bytes
        )
    if url.scheme == "s3":
        # boto3 takes a third of a second to import: only for those who use it.
        from omni_jobs.storage.s3 import S3ObjectStore

        return S3ObjectStore(
            url.netloc,
            prefix=unquote(url.path).strip("/"),
            endpoint_url=settings.s3_endpoint_url,
            region=settings.s3_region,
        )
    raise ConfigError(f"{url.scheme or 'no scheme'}: neither file nor s3", field="storage_url")
