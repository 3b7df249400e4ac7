"""The interface of an object store, and the checks that all stores share.

One contract suite runs on every implementation: tests/integration/storage/test_storage.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BaseModel, ConfigDict, Field
from xxhash import xxh3_128

from omni_jobs.errors import ObjectCorrupt, PayloadTooLarge, StorageError
from omni_jobs.storage.keys import KEY_PATTERN, MAX_KEY_LENGTH

if TYPE_CHECKING:
    from typing_extensions import Buffer

STREAM_BYTES: Final = 1 << 20


class ObjectRef(BaseModel):
    """A reference to an object of the store, with the size and digest that its bytes must have. SQL keeps it.

    key     the object's key
    size    bytes
    digest  "xxh3:" and 32 hex digits: XXH3 of 128 bits, which finds damage but no forgery
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: Annotated[str, Field(max_length=MAX_KEY_LENGTH, pattern=KEY_PATTERN)]
    size: Annotated[int, Field(ge=0, strict=True)]
    digest: Annotated[str, Field(pattern=r"^xxh3:[0-9a-f]{32}$")]


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as ``ObjectStore.list`` shows it: its key, its size in bytes, the time of its last put in UTC."""

    key: str
    size: int
    modified: datetime


def digest_text(digest: xxh3_128) -> str:
    """Return a digest as an object ref holds it: "xxh3:" and 32 hex digits."""
    return f"xxh3:{digest.hexdigest()}"


class ObjectStore(ABC):
    """Base class of the object stores: bytes by key. Synchronous; many threads may call every method at once.

    A put is atomic: readers see the old object, the new one or none, always whole. A put that failed may still have
    stored the object, when only the answer was lost.

    Errors name the key: ObjectMissing and ObjectCorrupt; StorageUnavailable and its kind StorageFull, which are
    retryable; StorageError for a key or a size that the store does not take. A constructor raises ConfigError only: a
    store that cannot be reached raises StorageUnavailable from its methods until it answers.
    """

    @abstractmethod
    def put(self, key: str, buffers: Sequence[Buffer], *, media_type: str = "application/octet-stream") -> ObjectRef:
        """Store the buffers as one object, not joined in memory, and return its ref. Replaces an object of this key."""

    @abstractmethod
    def read(self, ref: ObjectRef, *, max_bytes: int) -> memoryview:
        """Return all bytes of an object, read-only, size and digest checked.

        Raises PayloadTooLarge, before it reads anything, for an object of more than ``max_bytes``.
        """

    @abstractmethod
    def open_stream(self, ref: ObjectRef) -> Generator[bytes]:
        """Return the bytes of an object in pieces of at most 1 MiB, for a download.

        Raises ObjectMissing and ObjectCorrupt (a wrong size) at once. For a wrong digest the iterator raises
        ObjectCorrupt in place of the last piece, so that the download breaks off. The call and the iterator may raise
        StorageUnavailable.
        """

    @abstractmethod
    def open_range(self, ref: ObjectRef, start: int, stop: int) -> Generator[bytes]:
        """Return the bytes of an object from ``start`` up to ``stop``, in pieces of at most 1 MiB, and read no others.

        A range is verified by sizes alone, the object's and its own, because the digest in the ref is that of the
        whole: bytes that were damaged within an object of the right size are not found.

        Raises ObjectMissing and ObjectCorrupt (a wrong size) at once, and StorageError unless
        0 <= ``start`` < ``stop`` <= ``ref.size``. If bytes are missing, the iterator raises ObjectCorrupt or
        StorageUnavailable; the call may raise that too.
        """

    def download_url(self, ref: ObjectRef, *, media_type: str, disposition: str, head_only: bool = False) -> str | None:
        """Return a URL by which whoever has it gets the object for a short time; None if the store gives none.

        The answer has this ``Content-Type`` and ``Content-Disposition``. With ``head_only`` the URL is for HEAD, else
        for GET. Whether the object is there is not checked. The URL is a secret: it belongs in no log.
        Raises StorageUnavailable.
        """
        return None

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; a key without an object is no error. After an error, some of them may be deleted."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Yield the objects whose keys begin with ``prefix``, in any order. The caller may delete them meanwhile.

        The iteration raises StorageError for a prefix that no key can begin with, and StorageUnavailable.
        """

    @abstractmethod
    def prepare(self) -> None:
        """Create the directory or the bucket if it is missing, and put an object into the bucket.

        Raises StorageUnavailable, and ConfigError if a service refuses, because it would do so again.
        """

    @abstractmethod
    def check(self) -> None:
        """Raise StorageUnavailable or StorageFull, within seconds, unless a file can be put or the bucket answers."""

    def check_writes(self) -> None:
        """Raise StorageUnavailable or StorageFull, within seconds, unless an object can be put."""
        self.check()

    def remove_abandoned(self) -> None:  # noqa: B027 - most stores leave nothing behind
        """Remove the incomplete files of writers that were killed an hour ago or earlier. Raises StorageUnavailable."""

    # Checks that the implementations share

    @staticmethod
    def _check_limit(ref: ObjectRef, max_bytes: int) -> None:
        if ref.size > max_bytes:
            raise PayloadTooLarge(f"{ref.size} bytes, the limit is {max_bytes}", field="size", key=ref.key)

    @staticmethod
    def _check_size(ref: ObjectRef, size: int) -> None:
        if size != ref.size:
            raise ObjectCorrupt(f"{size} bytes, not {ref.size}", key=ref.key)

    @staticmethod
    def _check_range(ref: ObjectRef, start: int, stop: int) -> None:
        if not 0 <= start < stop <= ref.size:
            raise StorageError(f"{start} to {stop} is no range of {ref.size} bytes", field="range", key=ref.key)

    @staticmethod
    def _check_digest(ref: ObjectRef, digest: xxh3_128) -> None:
        if digest_text(digest) != ref.digest:
            raise ObjectCorrupt(f"the digest is {digest_text(digest)}, not {ref.digest}", key=ref.key)

    @classmethod
    def _checked_stream(cls, ref: ObjectRef, pieces: Iterator[bytes]) -> Generator[bytes]:
        """Yield the pieces of an object, each one late, so that the last goes out only if the digest is right."""
        digest = xxh3_128()
        size = 0
        previous: bytes | None = None
        for piece in pieces:
            if previous is not None:
                yield previous
            digest.update(piece)
            size += len(piece)
            previous = piece
        cls._check_size(ref, size)
        cls._check_digest(ref, digest)
        if previous is not None:
            yield previous
