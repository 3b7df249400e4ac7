"""Objects on any S3 service, by boto3.

Credentials come from boto3's own chain: environment, files, instance roles. A put is one PutObject request: atomic,
at most 5 GiB, and retried from its beginning. boto3 neither signs nor checksums bodies here, which makes a put four
times as fast: the digest in the object ref covers the network and the storage.

A call ends within 15 s and a second for each MB, with all its attempts, whatever the server does. So does
each piece of a stream, each page of a list, and a delete for each 1,000 keys (:mod:`omni_jobs.storage.botocore_hooks`).
No connection is made before the first call, so that a server may be away when a process starts.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC
from functools import cached_property, partial
from itertools import accumulate, islice
from typing import IO, TYPE_CHECKING, Any, Final, cast

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError
from xxhash import xxh3_128

from omni_jobs.errors import (
    ConfigError,
    ObjectCorrupt,
    ObjectMissing,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from omni_jobs.files import byte_views
from omni_jobs.servers import check_base_url
from omni_jobs.storage.botocore_hooks import CallLimit, CallLimitReached, install_hooks
from omni_jobs.storage.credentials import check_credentials, open_session
from omni_jobs.storage.keys import check_key, check_prefix
from omni_jobs.storage.object_store import STREAM_BYTES, ObjectRef, ObjectStore, StoredObject, digest_text
from omni_jobs.tls.certificates import check_trusted, refusal

if TYPE_CHECKING:
    from botocore.response import StreamingBody
    from mypy_boto3_s3.client import S3Client
    from typing_extensions import Buffer

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z")
_MAX_OBJECT_BYTES: Final = 5 << 30  # of one PutObject
_DELETE_BATCH: Final = 1000  # keys in one DeleteObjects
_READ_TRIES: Final = 3
_CALL_S: Final = 15.0
_SLOWEST_BYTES_PER_S: Final = 1_000_000
_CHECK_S: Final = 4.0
_WRITE_CHECK: Final = "write-check"  # the one object that checks put
_REFUSED: Final = frozenset({"EntityTooLarge", "InvalidArgument", "KeyTooLongError"})
_FULL: Final = frozenset(
    {"InsufficientStorage", "QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "507"}
)


class S3ObjectStore(ObjectStore):
    """The object store in one bucket of an S3 service, below a prefix.

    ``call_s``: the seconds that a call may take with all its attempts; a call that moves an object gets a second more
    for each MB, and ``check`` has 4 s. ``download_url_s``: how many seconds a ``download_url`` lives; None: there is
    none. ``public_endpoint_url``: where clients reach the service, if not at ``endpoint_url``. Raises ConfigError for
    a bucket, prefix or endpoint that is not valid, for a file of trusted authorities that cannot be used, and where
    boto3 finds no keys (:mod:`omni_jobs.storage.credentials`).
    """

    def __init__(
        self,
        bucket: str,
        *,
        prefix: str = "",
        endpoint_url: str | None = None,
        public_endpoint_url: str | None = None,
        region: str,
        call_s: float = _CALL_S,
        download_url_s: int | None = None,
    ) -> None:
        if not _BUCKET.match(bucket):
            raise ConfigError(f"{bucket[:80]!a} is not a bucket's name: s3://bucket/prefix", field="storage_url")
        _check_endpoint(endpoint_url, "s3_endpoint_url")
        _check_endpoint(public_endpoint_url, "s3_public_endpoint_url")
        try:
            self._prefix = f"{check_prefix(prefix).rstrip('/')}/" if prefix else ""
        except StorageError as error:
            raise ConfigError("the prefix is not the beginning of a key", field="storage_url") from error
        self._bucket = bucket
        self._region = region
        self._endpoint_url = endpoint_url
        self._call_s = call_s
        self._session, trusted = open_session()
        if trusted is not None and not (endpoint_url or "").startswith("http:"):
            check_trusted(trusted, field="AWS_CA_BUNDLE")
        check_credentials(self._session)
        self._config = Config(
            signature_version="s3v4",
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            retries={"mode": "standard", "total_max_attempts": 4},
            connect_timeout=call_s / 5,
            read_timeout=call_s / 2,  # half a call, so that one more attempt follows a connection that died silently
            max_pool_connections=64,
            tcp_keepalive=True,
            s3={"payload_signing_enabled": False, "addressing_style": "path" if endpoint_url else "auto"},
        )
        self._download_url_s = download_url_s
        self._client = self._connect(self._config)
        self._public_client = self._client
        if download_url_s is not None and public_endpoint_url is not None:
            path_style = self._config.merge(Config(s3={"addressing_style": "path"}))
            self._public_client = self._connect(path_style, public_endpoint_url, "s3_public_endpoint_url")

    def put(self, key: str, buffers: Sequence[Buffer], *, media_type: str = "application/octet-stream") -> ObjectRef:
        views = byte_views(buffers)
        size = sum(view.nbytes for view in views)
        if size > _MAX_OBJECT_BYTES:
            raise StorageError(f"{size} bytes, S3 takes {_MAX_OBJECT_BYTES} in one request", key=key)
        digest = xxh3_128()
        for view in views:
            digest.update(view)
        with self._call("storing the object", key, self._limit(size)):
            body = cast("IO[bytes]", _Body(views, size))
            self._client.put_object(Bucket=self._bucket, Key=self._bucket_key(key), Body=body, ContentType=media_type)
        return ObjectRef(key=key, size=size, digest=digest_text(digest))

    def read(self, ref: ObjectRef, *, max_bytes: int) -> memoryview:
        self._check_limit(ref, max_bytes)
        with self._call("reading the object", ref.key, self._limit(ref.size)):
            tries_left = _READ_TRIES
            while True:
                tries_left -= 1
                with closing(self._get(ref)) as body:
                    try:
                        data = memoryview(body.read())
                        self._check_digest(ref, xxh3_128(data))
                        return data
                    except (HTTPClientError, IncompleteReadError, ObjectCorrupt):
                        # boto3 retries a request, but not once its headers are there.
                        if not tries_left:
                            raise

    def open_stream(self, ref: ObjectRef) -> Generator[bytes]:
        return self._checked_stream(ref, self._pieces(ref, self._get))

    def open_range(self, ref: ObjectRef, start: int, stop: int) -> Generator[bytes]:
        self._check_range(ref, start, stop)
        return self._pieces(ref, partial(self._get_range, start=start, stop=stop))

    def download_url(self, ref: ObjectRef, *, media_type: str, disposition: str, head_only: bool = False) -> str | None:
        if self._download_url_s is None:
            return None
        asked = {
            "Bucket": self._bucket,
            "Key": self._bucket_key(ref.key),
            "ResponseContentType": media_type,
            "ResponseContentDisposition": disposition,
        }
        operation = "head_object" if head_only else "get_object"
        with self._call("signing a URL", ref.key):  # which may ask for credentials
            return self._public_client.generate_presigned_url(operation, asked, ExpiresIn=self._download_url_s)

    def _pieces(self, ref: ObjectRef, get: Callable[[ObjectRef], StreamingBody]) -> Generator[bytes]:
        """Return the pieces of the body that ``get`` opens, which this call does."""
        limit = self._limit(STREAM_BYTES)
        with self._call("reading the object", ref.key, limit):
            body = get(ref)

        def pieces() -> Generator[bytes]:
            with closing(body):
                while True:
                    # The same limit again, because it knows the connection.
                    with self._call("reading the object", ref.key, limit):
                        piece = body.read(STREAM_BYTES)
                    if not piece:
                        return
                    yield piece

        return pieces()

    def delete(self, keys: Iterable[str]) -> None:
        remaining = iter(keys)
        while batch := [self._bucket_key(key) for key in islice(remaining, _DELETE_BATCH)]:
            with self._call("deleting objects", self._store_key(batch[0])):
                answer = self._client.delete_objects(
                    Bucket=self._bucket, Delete={"Objects": [{"Key": key} for key in batch], "Quiet": True}
                )
            for error in answer.get("Errors", ()):
                if error.get("Code") != "NoSuchKey":
                    key = self._store_key(error.get("Key", ""))
                    raise StorageUnavailable(f"deleting the object failed: {error.get('Code')}", key=key)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        full_prefix = self._prefix + check_prefix(prefix)
        pages = iter(self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=full_prefix))
        while True:
            with self._call("listing the objects", prefix):
                page = next(pages, None)
            if page is None:
                return
            for listed in page.get("Contents", ()):
                key = self._store_key(listed["Key"])
                yield StoredObject(key, listed["Size"], listed["LastModified"].astimezone(UTC))

    def prepare(self) -> None:
        try:
            self._make_bucket_unless_there()
            # As patient as a job's write: the first write to a new bucket may wait until the service has made room.
            self._put_check(self._client, CallLimit(self._call_s))
        except StorageUnavailable as error:
            if isinstance(error.__cause__, ClientError) and _refuses(error.__cause__):
                what = f"{error.message}: is the bucket {self._bucket} yours, and may these credentials write to it?"
                raise ConfigError(what, field="storage_url") from error
            raise

    def _make_bucket_unless_there(self) -> None:
        try:
            return self.check()  # credentials need not make or list buckets if this one is there
        except StorageUnavailable as error:
            if not isinstance(error.__cause__, ClientError) or _code(error.__cause__) not in ("404", "NoSuchBucket"):
                raise
        with self._call("creating the bucket", self._bucket):
            try:
                elsewhere: Any = {"CreateBucketConfiguration": {"LocationConstraint": self._region}}
                self._client.create_bucket(Bucket=self._bucket, **elsewhere if self._region != "us-east-1" else {})
            except ClientError as error:
                if _code(error) not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                    raise

    def check(self) -> None:
        with self._call("asking for the bucket", self._bucket, CallLimit(_CHECK_S)):
            self._impatient_client.head_bucket(Bucket=self._bucket)

    def check_writes(self) -> None:
        self._put_check(self._impatient_client, CallLimit(_CHECK_S))

    def _put_check(self, client: S3Client, limit: CallLimit) -> None:
        with self._call("putting an object", self._bucket, limit):
            client.put_object(Bucket=self._bucket, Key=f"{self._prefix}{_WRITE_CHECK}", Body=b"omni-jobs")

    def _connect(self, config: Config, endpoint_url: str | None = None, field: str = "s3_endpoint_url") -> S3Client:
        """Return a client, by default one of this store's endpoint. Raises ConfigError naming ``field``."""
        url = endpoint_url or self._endpoint_url
        try:
            client = self._session.client("s3", endpoint_url=url, region_name=self._region, config=config)
        except (ValueError, BotoCoreError) as error:
            raise ConfigError("is not a URL of an S3 service", field=field) from error
        install_hooks(client)
        return client

    @cached_property
    def _impatient_client(self) -> S3Client:
        """A client of one attempt, for readiness checks, which have to answer within seconds."""
        quick = Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=_CHECK_S)
        return self._connect(self._config.merge(quick))

    def _bucket_key(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _store_key(self, bucket_key: str) -> str:
        return bucket_key.removeprefix(self._prefix)

    def _get(self, ref: ObjectRef) -> StreamingBody:
        """Return the open body of an object. Raises ObjectCorrupt for a wrong size."""
        answer = self._client.get_object(Bucket=self._bucket, Key=self._bucket_key(ref.key))
        body = answer["Body"]
        try:
            self._check_size(ref, answer["ContentLength"])
        except BaseException:
            body.close()
            raise
        return body

    def _get_range(self, ref: ObjectRef, start: int, stop: int) -> StreamingBody:
        """Return the open body of a part of an object. Raises ObjectCorrupt for a wrong size of the whole."""
        try:
            answer = self._client.get_object(
                Bucket=self._bucket, Key=self._bucket_key(ref.key), Range=f"bytes={start}-{stop - 1}"
            )
        except ClientError as error:
            if _code(error) == "InvalidRange":
                raise ObjectCorrupt(f"fewer than {start + 1} bytes, not {ref.size}", key=ref.key) from error
            raise
        body = answer["Body"]
        try:
            sent = answer.get("ContentRange", "")
            if sent != f"bytes {start}-{stop - 1}/{ref.size}":
                self._check_size(
                    ref, int(size) if (size := sent.rpartition("/")[2]).isdecimal() else answer["ContentLength"]
                )
                raise StorageUnavailable("reading the object failed: S3 sent another range", key=ref.key)
        except BaseException:
            body.close()
            raise
        return body

    def _limit(self, size: int) -> CallLimit:
        return CallLimit(self._call_s + size / _SLOWEST_BYTES_PER_S)

    @contextmanager
    def _call(self, action: str, key: str, limit: CallLimit | None = None) -> Iterator[None]:
        """Bound the S3 calls within by ``limit``, and raise our errors for boto3's.

        The errors name the endpoint and S3's code, never a credential.
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
                raise StorageFull(f"{action} failed: S3 answered {code}", key=key) from error
            refused = StorageError if code in _REFUSED else StorageUnavailable
            raise refused(f"{action} failed: S3 answered {code}", key=key) from error
        except (BotoCoreError, HTTPError, CallLimitReached, ResponseParserError) as error:
            endpoint = self._endpoint_url or "AWS"
            untrusted = refusal(error, url=endpoint, setting="OMNI_JOBS_S3_ENDPOINT_URL", trust="AWS_CA_BUNDLE")
            if untrusted is not None and not limit.is_reached:
                raise StorageUnavailable(f"{action} failed: no TLS", key=key, because=untrusted) from error
            reason = f"no end within {limit.seconds:.3g} s" if limit.is_reached else type(error).__name__
            where = f"the endpoint is {endpoint}"
            raise StorageUnavailable(f"{action} failed: {reason}", key=key, because=where) from error


def _check_endpoint(url: str | None, field: str) -> None:
    """Raise ConfigError, naming the setting, for a URL of no server."""
    try:
        if url is not None:
            check_base_url(url)
    except ValueError as error:
        raise ConfigError(f"{error}; boto3 has its own chain of keys", field=field) from None


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", "unknown"))


def _refuses(error: ClientError) -> bool:
    """Return whether another try would get the same answer."""
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
    return 300 <= status < 500 and status not in (408, 429)


class _Body:
    """A file of several buffers, one after the other. boto3 sends it, and seeks to its start for another attempt."""

    def __init__(self, views: Sequence[memoryview], size: int) -> None:
        self._views = views
        self._ends = list(accumulate(view.nbytes for view in views))
        self._size = size
        self._position = 0

    def __len__(self) -> int:
        return self._size

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int) -> None:
        self._position = offset

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes, as a view, which is not copied: to the end of one buffer at most."""
        index = bisect_right(self._ends, self._position)
        if index == len(self._views):
            return b""
        view = self._views[index]
        start = self._position - (self._ends[index] - view.nbytes)
        piece = view[start:] if size is None or size < 0 else view[start : start + size]
        self._position += piece.nbytes
        return piece  # type: ignore[return-value]
