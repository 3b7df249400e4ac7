"""A cache of this host in front of the object store: a stage here reads from memory what a stage here wrote.

With S3 behind it, or a directory across a network, a hand-off between two workers of one
machine then waits for no download. The put goes to the store first: the cache holds
nothing that the store does not, and may lose anything at any time. Every read checks
size and digest as ever, so that a wrong entry is a missing one.

The entries are files in one directory, by default of memory (``/dev/shm``), which the
processes of one user share without a lock: an entry is written beside its place and
renamed, and an open one outlives its name. The oldest go when all are larger than
``max_bytes``, and whatever is older than ``_KEEP_S``: a stage that has not come by then
runs elsewhere or waits long, and reads from the store.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import xxhash

from omni_jobs.errors import ConfigError, ObjectCorrupt
from omni_jobs.files import byte_views, map_file, write_all
from omni_jobs.storage.keys import is_handed_on
from omni_jobs.storage.object_store import Digest, ObjectRef, ObjectStore, StoredObject

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["HostCache"]

logger = logging.getLogger(__name__)

_KEEP_S: Final = 600.0
_LARGEST_SHARE: Final = 4  # an object larger than this part of the cache is not kept
_LOOK_SHARE: Final = 16  # a process looks at the whole after it has added this part of it


class HostCache(ObjectStore):
    """An object store with what stages hand on kept on this host as well; several processes may share it."""

    def __init__(self, store: ObjectStore, directory: Path, *, max_bytes: int, namespace: str) -> None:
        """``namespace``: tells stores apart that share a directory, by their URL.

        Raises ConfigError for a directory that is another user's, or cannot be made.
        """
        self._store = store
        self._directory = directory
        self._max_bytes = max_bytes
        self._namespace = namespace
        self._lock = threading.Lock()
        self._added = max_bytes  # since the last look at the whole: the first put looks
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = directory.lstat()
        except OSError as error:
            raise ConfigError(f"cannot be made: {error.strerror}", field="host_cache_dir") from error
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise ConfigError("is not a directory of this user's own", field="host_cache_dir")

    def put(self, key: str, buffers: Sequence[Buffer], *, media_type: str = "application/octet-stream") -> ObjectRef:
        views = byte_views(buffers)
        ref = self._store.put(key, views, media_type=media_type)
        if is_handed_on(key) and 0 < ref.size <= self._max_bytes // _LARGEST_SHARE:
            try:
                self._keep(ref, views)
            except OSError as error:
                logger.warning("%s is not kept on this host: %s", key, error.strerror)
        return ref

    def read(self, ref: ObjectRef, *, max_bytes: int) -> memoryview:
        self._check_limit(ref, max_bytes)
        found = self._kept(ref)
        return self._store.read(ref, max_bytes=max_bytes) if found is None else found

    def open_stream(self, ref: ObjectRef) -> Iterator[bytes]:
        return self._store.open_stream(ref)

    def delete(self, keys: Iterable[str]) -> None:
        wanted = list(keys)
        for key in wanted:
            self._forget(key)
        self._store.delete(wanted)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        return self._store.list(prefix)

    def prepare(self) -> None:
        self._store.prepare()

    def check(self) -> None:
        self._store.check()

    def remove_abandoned(self) -> None:
        self._store.remove_abandoned()

    # Entries

    def _path(self, key: str) -> Path:
        return self._directory / xxhash.xxh3_128_hexdigest(f"{self._namespace}\n{key}".encode())

    def _keep(self, ref: ObjectRef, views: Sequence[memoryview]) -> None:
        self._make_room(ref.size)
        partial = self._directory / f".{uuid.uuid4().hex}"
        try:
            fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                write_all(fd, views)
            finally:
                os.close(fd)
            partial.replace(self._path(ref.key))
        except OSError:
            self._forget(ref.key)  # what an earlier put of this key left
            partial.unlink(missing_ok=True)
            raise

    def _kept(self, ref: ObjectRef) -> memoryview | None:
        """The bytes, if they are here and right."""
        if not is_handed_on(ref.key) or ref.size == 0:
            return None
        try:
            fd = os.open(self._path(ref.key), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # never here, or no longer
            return None
        try:
            self._check_size(ref, os.fstat(fd).st_size)
            data = map_file(fd, ref.size)
            digest = Digest()
            digest.update(data)
            self._check_digest(ref, digest)
        except (OSError, ObjectCorrupt) as error:
            logger.warning("what is kept on this host is not used: %s", error)
            self._forget(ref.key)
            return None
        finally:
            os.close(fd)
        return data

    def _forget(self, key: str) -> None:
        with suppress(OSError):
            self._path(key).unlink()

    # Room

    def _make_room(self, size: int) -> None:
        """Every so often look at the whole, and let the oldest go. Raises OSError.

        Between two looks of a process it adds a sixteenth at most: the directory may be larger by that for
        each of them.
        """
        with self._lock:
            self._added += size
            if self._added < self._max_bytes // _LOOK_SHARE:
                return
            self._added = size
        entries = sorted(self._entries())
        room = self._max_bytes - size - self._max_bytes // _LOOK_SHARE
        total = sum(entry_size for _, entry_size, _ in entries)
        oldest_kept = time.time() - _KEEP_S
        for modified, entry_size, path in entries:
            if total <= room and modified >= oldest_kept:
                break
            with suppress(FileNotFoundError):  # another process was first
                path.unlink()
            total -= entry_size

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        """When it was written, its size, its path; what a killed process left half written is among them."""
        with os.scandir(self._directory) as found:
            for entry in found:
                with suppress(FileNotFoundError):
                    about = entry.stat(follow_symlinks=False)
                    yield about.st_mtime, about.st_size, Path(entry.path)
