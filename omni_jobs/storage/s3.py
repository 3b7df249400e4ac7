"""Objects on any S3 service, by boto3.

Credentials come from boto3's own chain (environment, files, instance roles). A put is
one PutObject request: atomic, at most 5 GiB, and retried from its beginning. Bodies are
neither signed nor checksummed by boto3, which makes a put four times as fast: the
digest in the object ref covers the way and the storage.

Every call ends within 15 s and a second for each MB, with all its attempts, whatever the
server does (:mod:`omni_jobs.storage.call_limit`). No connection is made before the first
call: a server that is away at the start is one that is away for a while.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC
from functools import cached_property
from itertools import islice
from typing import IO, TYPE_CHECKING, Final, cast

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    HTTPClientError,
    IncompleteReadError,
    ReadTimeoutError,
    ResponseStreamingError,
)
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from omni_jobs.errors import (
    ConfigError,
    ObjectCorrupt,
    ObjectMissing,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from omni_jobs.files import byte_views
from omni_jobs.storage.call_limit import CallLimit, LimitReached, limit_calls
from omni_jobs.storage.keys import check_key, check_prefix
from omni_jobs.storage.object_store import STREAM_BYTES, Digest, ObjectRef, ObjectStore, StoredObject

if TYPE_CHECKING:
    from botocore.response import StreamingBody
    from mypy_boto3_s3.client import S3Client
    from typing_extensions import Buffer

__all__ = ["S3ObjectStore"]

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z")
_MAX_OBJECT_BYTES: Final = 5 << 30  # of one PutObject
_DELETE_BATCH: Final = 1000  # keys in one DeleteObjects
_READ_TRIES: Final = 3
_CALL_S: Final = 15.0
_SLOWEST_BYTES_PER_S: Final = 1_000_000
_CHECK_S: Final = 4.0
_BROKEN_BODY: Final = (
    ConnectionClosedError,
    HTTPClientError,
    IncompleteReadError,
    ReadTimeoutError,
    ResponseStreamingError,
)
_REFUSED: Final = frozenset({"EntityTooLarge", "InvalidArgument", "KeyTooLongError"})
_FULL: Final = frozenset(
    {"InsufficientStorage", "QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "507"}
)


class S3ObjectStore(ObjectStore):
    """Objects in one bucket, below a prefix.

    ``call_s``: how long a call may take with all its attempts; one that moves an object
    gets a second more for each MB.
    """

    def __init__(
        self, bucket: str, *, prefix: str = "", endpoint_url: str | None = None, region: str, call_s: float = _CALL_S
    ) -> None:
        if not _BUCKET.match(bucket):
            raise ConfigError(f"{bucket[:80]!a} is not a bucket's name: s3://bucket/prefix", field="storage_url")
        if endpoint_url is not None and "@" in endpoint_url:
            raise ConfigError("takes no credentials: boto3 has its own chain", field="s3_endpoint_url")
        try:
            self._prefix = f"{check_prefix(prefix).rstrip('/')}/" if prefix else ""
        except StorageError as error:
            raise ConfigError(error.message, field="storage_url") from error
        self._bucket = bucket
        self._region = region
        self._endpoint_url = endpoint_url
        self._call_s = call_s
        self._session = boto3.session.Session()
        self._config = Config(
            signature_version="s3v4",
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            retries={"mode": "standard", "total_max_attempts": 4},
            connect_timeout=call_s / 5,
            read_timeout=call_s / 2,  # without a byte: a connection that died silently leaves time for another attempt
            max_pool_connections=64,
            tcp_keepalive=True,
            s3={"payload_signing_enabled": False, "addressing_style": "path" if endpoint_url else "auto"},
        )
        try:
            self._client = self._open(self._config)
        except (ValueError, BotoCoreError) as error:
            raise ConfigError("is not a URL of an S3 service", field="s3_endpoint_url") from error

    def put(self, key: str, buffers: Sequence[Buffer], *, media_type: str = "application/octet-stream") -> ObjectRef:
        views = byte_views(buffers)
        size = sum(view.nbytes for view in views)
        if size > _MAX_OBJECT_BYTES:
            raise StorageError(f"{size} bytes, S3 takes {_MAX_OBJECT_BYTES} in one request", key=key)
        digest = Digest()
        for view in views:
            digest.update(view)
        with self._translated("storing the object", key, self._limit_for(size)):
            body = cast("IO[bytes]", _Body(views, size))
            self._client.put_object(Bucket=self._bucket, Key=self._key(key), Body=body, ContentType=media_type)
        return ObjectRef(key=key, size=size, digest=str(digest))

    def read(self, ref: ObjectRef, *, max_bytes: int) -> memoryview:
        self._check_limit(ref, max_bytes)
        limit = self._limit_for(ref.size)
        try:
            return self._read(ref, limit)
        except ObjectCorrupt:  # damaged on the way here, or where it is kept: another look tells
            return self._read(ref, limit)

    def _read(self, ref: ObjectRef, limit: CallLimit) -> memoryview:
        with self._translated("reading the object", ref.key, limit):
            for tries_left in reversed(range(_READ_TRIES)):
                body = self._get(ref)
                try:
                    data = _filled(body, ref.size)
                    break
                except _BROKEN_BODY:  # boto3 retries requests, not what comes after their headers
                    if not tries_left:
                        raise
                finally:
                    body.close()
        digest = Digest()
        digest.update(data)
        self._check_digest(ref, digest)
        return data

    def open_stream(self, ref: ObjectRef) -> Iterator[bytes]:
        limit = self._limit_for(ref.size)
        with self._translated("reading the object", ref.key, limit):
            body = self._get(ref)

        def pieces() -> Iterator[bytes]:
            try:
                while True:
                    with self._translated("reading the object", ref.key, limit):
                        piece = body.read(STREAM_BYTES)
                    if not piece:
                        return
                    yield piece
            finally:
                body.close()

        return self._checked_stream(ref, pieces())

    def delete(self, keys: Iterable[str]) -> None:
        wanted = iter(keys)
        while batch := [self._key(key) for key in islice(wanted, _DELETE_BATCH)]:
            with self._translated("deleting objects", self._named(batch[0])):
                answer = self._client.delete_objects(
                    Bucket=self._bucket, Delete={"Objects": [{"Key": key} for key in batch], "Quiet": True}
                )
            for error in answer.get("Errors", ()):
                if error.get("Code") != "NoSuchKey":
                    key = self._named(error.get("Key", ""))
                    raise StorageUnavailable(f"deleting the object failed: {error.get('Code')}", key=key)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        below = self._prefix + check_prefix(prefix)
        pages = iter(self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=below))
        while True:
            with self._translated("listing the objects", prefix):
                page = next(pages, None)
            if page is None:
                return
            for found in page.get("Contents", ()):
                key = self._named(found["Key"])
                yield StoredObject(key, found["Size"], found["LastModified"].astimezone(UTC))

    def prepare(self) -> None:
        try:
            self.check()
        except StorageUnavailable as error:
            if not isinstance(error.__cause__, ClientError) or _code(error.__cause__) not in ("404", "NoSuchBucket"):
                raise
        else:
            return
        with self._translated("creating the bucket", self._bucket):
            try:
                if self._region == "us-east-1":
                    self._client.create_bucket(Bucket=self._bucket)
                else:
                    self._client.create_bucket(
                        Bucket=self._bucket,
                        CreateBucketConfiguration={"LocationConstraint": self._region},  # type: ignore[typeddict-item]
                    )
            except ClientError as error:
                if _code(error) not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                    raise

    def check(self) -> None:
        with self._translated("asking for the bucket", self._bucket, CallLimit(_CHECK_S)):
            try:
                self._impatient.head_bucket(Bucket=self._bucket)
            except ClientError as error:
                code = _code(error)
                refused = StorageFull if code in _FULL else StorageUnavailable
                raise refused(f"the bucket refuses: {code}", key=self._bucket) from error

    def _open(self, config: Config) -> S3Client:
        client = self._session.client("s3", endpoint_url=self._endpoint_url, region_name=self._region, config=config)
        limit_calls(client)
        return client

    @cached_property
    def _impatient(self) -> S3Client:
        """For readiness: answers within seconds, by one try."""
        quick = Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=_CHECK_S)
        return self._open(self._config.merge(quick))

    def _key(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _named(self, key: str) -> str:
        """A key of the bucket as the store's callers know it."""
        return key.removeprefix(self._prefix)

    def _get(self, ref: ObjectRef) -> StreamingBody:
        """The open body of an object, once its size is right."""
        answer = self._client.get_object(Bucket=self._bucket, Key=self._key(ref.key))
        body = answer["Body"]
        try:
            self._check_size(ref, answer["ContentLength"])
        except BaseException:
            body.close()
            raise
        return body

    def _limit_for(self, size: int) -> CallLimit:
        return CallLimit(self._call_s + size / _SLOWEST_BYTES_PER_S)

    @contextmanager
    def _translated(self, doing: str, key: str, limit: CallLimit | None = None) -> Iterator[None]:
        """Within a limit, raise our errors for boto3's.

        Their texts hold the endpoint, never a credential; ours hold the code.
        """
        limit = limit or CallLimit(self._call_s)
        try:
            with limit:
                yield
        except ClientError as error:
            code = _code(error)
            if code == "NoSuchKey":
                raise ObjectMissing(key=key) from error
            if code in _FULL or error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 507:
                raise StorageFull(f"{doing} failed: S3 answered {code}", key=key) from error
            refused = StorageError if code in _REFUSED else StorageUnavailable
            raise refused(f"{doing} failed: S3 answered {code}", key=key) from error
        except (BotoCoreError, HTTPError, LimitReached, ResponseParserError) as error:
            where = self._endpoint_url or "AWS"
            what = f"no end within {limit.seconds:.3g} s" if limit.is_reached else type(error).__name__
            raise StorageUnavailable(f"{doing} failed: {what} at {where}", key=key) from error


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", "unknown"))


def _filled(body: StreamingBody, size: int) -> memoryview:
    buffer = memoryview(bytearray(size))
    at = 0
    while at < size:
        count = body.readinto(buffer[at : at + STREAM_BYTES])  # type: ignore[arg-type]
        if count == 0:
            raise IncompleteReadError(actual_bytes=at, expected_bytes=size)
        at += count
    return buffer.toreadonly()


class _Body(io.RawIOBase):
    """Buffers one after the other, as the file that boto3 sends, and sends again after a seek."""

    def __init__(self, views: Sequence[memoryview], size: int) -> None:
        self._views = views
        self._size = size
        self._view = 0  # the buffer to read next, and where in it
        self._offset = 0

    def __len__(self) -> int:
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return sum(view.nbytes for view in self._views[: self._view]) + self._offset

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: self._size}[whence]
        self._view, self._offset = 0, max(0, at)
        while self._view < len(self._views) and self._offset >= self._views[self._view].nbytes:
            self._offset -= self._views[self._view].nbytes
            self._view += 1
        return at

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes, as a view: fewer than asked for at the end of a buffer."""
        if self._view == len(self._views):
            return b""
        view = self._views[self._view]
        end = view.nbytes if size is None or size < 0 else min(view.nbytes, self._offset + size)
        piece = view[self._offset : end]
        self._offset = end
        if end == view.nbytes:
            self._view, self._offset = self._view + 1, 0
        return piece  # type: ignore[return-value]
