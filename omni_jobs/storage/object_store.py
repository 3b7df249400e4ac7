"""What every object store does.

``local`` and ``s3`` pass one contract suite: tests/integration/storage/test_storage.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final

import xxhash
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from omni_jobs.errors import ObjectCorrupt, PayloadTooLarge, StorageError
from omni_jobs.storage.keys import check_key

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Digest", "ObjectRef", "ObjectStore", "StoredObject"]

STREAM_BYTES: Final = 1 << 20


def _valid_key(key: str) -> str:
    try:
        return check_key(key)
    except StorageError as error:
        raise ValueError(error.message) from error


class ObjectRef(BaseModel):
    """An object and what its bytes must be; kept in SQL, never in the store.

    key     where it is
    size    bytes
    digest  "xxh3:" and 32 hex digits: XXH3 of 128 bits, against damage, not against forgery
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: Annotated[str, AfterValidator(_valid_key)]
    size: Annotated[int, Field(ge=0, strict=True)]
    digest: Annotated[str, Field(pattern=r"^xxh3:[0-9a-f]{32}$")]


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What a listing tells of an object; ``modified`` is in UTC."""

    key: str
    size: int
    modified: datetime


class Digest:
    """XXH3-128, as bytes go by."""

    def __init__(self) -> None:
        self._state = xxhash.xxh3_128()

    def update(self, data: Buffer) -> None:
        self._state.update(data)

    def __str__(self) -> str:
        return f"xxh3:{self._state.hexdigest()}"


class ObjectStore(ABC):
    """Objects by key. Synchronous; every method may be called from many threads at once.

    A put is atomic: readers see the whole object, old or new, or none. One that failed may
    still have stored the whole object, when only the answer was lost. Errors name the key:
    ObjectMissing, ObjectCorrupt, StorageUnavailable and its kind StorageFull (retryable),
    and StorageError for a key that no store takes. Making a store raises nothing but
    ConfigError: one that is away answers with errors until it is back.
    """

    @abstractmethod
    def put(self, key: str, buffers: Sequence[Buffer], *, media_type: str = "application/octet-stream") -> ObjectRef:
        """Store the buffers, one after the other, without joining them; replaces what was there."""

    @abstractmethod
    def read(self, ref: ObjectRef, *, max_bytes: int) -> memoryview:
        """All the bytes, read-only, size and digest checked.

        Raises PayloadTooLarge before anything is read when there are more than ``max_bytes``.
        """

    @abstractmethod
    def open_stream(self, ref: ObjectRef) -> Iterator[bytes]:
        """The bytes in pieces, for a download.

        A missing object or a wrong size raises here; a wrong digest raises
        ObjectCorrupt in place of the last piece, so that the download breaks off.
        """

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are not there are as good as deleted."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """The objects whose key starts so, in no order to rely on; they may be deleted meanwhile."""

    @abstractmethod
    def prepare(self) -> None:
        """Create the directory or the bucket where it is missing. Raises StorageUnavailable."""

    @abstractmethod
    def check(self) -> None:
        """Whether objects can be stored now. Raises StorageUnavailable or StorageFull, within seconds."""

    def remove_abandoned(self) -> None:  # noqa: B027 - most stores have nothing of the kind
        """Remove what killed writers left half written, and is no object. Raises StorageUnavailable."""

    # What the implementations share

    @staticmethod
    def _check_limit(ref: ObjectRef, max_bytes: int) -> None:
        if ref.size > max_bytes:
            raise PayloadTooLarge(f"{ref.size} bytes, the limit is {max_bytes}", field="size", key=ref.key)

    @staticmethod
    def _check_size(ref: ObjectRef, size: int) -> None:
        if size != ref.size:
            raise ObjectCorrupt(f"{size} bytes, not {ref.size}", key=ref.key)

    @staticmethod
    def _check_digest(ref: ObjectRef, digest: Digest) -> None:
        if str(digest) != ref.digest:
            raise ObjectCorrupt(f"the digest is {digest}, not {ref.digest}", key=ref.key)

    @classmethod
    def _checked_stream(cls, ref: ObjectRef, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """The pieces, held back by one, so that the last one goes out only when the digest is right."""
        digest = Digest()
        size = 0
        held: bytes | None = None
        for piece in pieces:
            if held is not None:
                yield held
            digest.update(piece)
            size += len(piece)
            held = piece
        cls._check_size(ref, size)
        cls._check_digest(ref, digest)
        if held is not None:
            yield held
