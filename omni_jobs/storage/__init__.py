"""The object store: a local directory or S3, behind one small interface."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from omni_jobs.errors import ConfigError
from omni_jobs.storage.keys import artifact_key, input_key, job_prefix, payload_key, snapshot_key
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
    "snapshot_key",
]


def open_store(settings: Settings) -> ObjectStore:
    """Return the object store that the setting ``storage_url`` names: ``file:///directory`` or ``s3://bucket/prefix``.

    Raises ConfigError for any other URL, a wrong one of an S3 service, or where boto3 finds no keys for it. A store
    that cannot be reached raises nothing here, only when used.
    """
    try:
        url = urlsplit(settings.resolved_storage_url)
    except ValueError:
        raise ConfigError("not a URL", field="storage_url") from None
    if "\0" in unquote(url.path):
        raise ConfigError("a path has no NUL", field="storage_url")
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
            public_endpoint_url=settings.s3_public_endpoint_url,
            download_url_s=settings.download_url_s,
            region=settings.s3_region,
        )
    raise ConfigError(f"{url.scheme[:20] or 'no scheme'}: neither file nor s3", field="storage_url")
