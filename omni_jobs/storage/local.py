"""Objects as files in a directory: the embedded default.

A key is a path under the directory. An object is written beside it in ``.partial`` (on
the same filesystem) and renamed to its place. With ``sync`` (the setting
``storage_sync``, on by default) file and directory are synced before a put returns, so
that a row in SQL never refers to bytes that a power loss took; a killed process loses
nothing either way.

``min_free_bytes`` of the filesystem stay free: a put that would take them is refused. A
directory that cannot be made at the start (a mount that is late, a full disk) is tried
again by every put and check until it once is there; one that vanishes later is not made
anew, because it may be a mount that comes back with all its objects.
"""

from __future__ import annotations

import logging
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from omni_jobs.errors import ObjectMissing, StorageError, StorageUnavailable
from omni_jobs.files import (
    byte_views,
    map_file,
    map_path,
    require_room,
    sync_directory,
    translated_os_errors,
    write_all,
)
from omni_jobs.storage.base import STREAM_BYTES, Digest, ObjectRef, ObjectStore, StoredObject
from omni_jobs.storage.keys import check_key, check_prefix

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["LocalObjectStore"]

logger = logging.getLogger(__name__)

_PARTIAL: Final = ".partial"
_ABANDONED_S: Final = 3600.0  # since its last byte: nobody writes it any more
_RENAME_TRIES: Final = 20


class LocalObjectStore(ObjectStore):
    """Objects under one directory; several processes may share it.

    Raises nothing when it is made: what is wrong with the directory is logged, and told by every call.
    """

    def __init__(self, directory: Path, *, sync: bool = True, min_free_bytes: int = 0) -> None:
        self._directory = directory.absolute()
        self._partial = self._directory / _PARTIAL
        self._sync = sync
        self._min_free_bytes = min_free_bytes
        self._was_there = False
        try:
            self.prepare()
            self.remove_abandoned()
        except StorageUnavailable as error:
            logger.error("the object store is not usable yet: %s", error)

    def put(self, key: str, buffers: Sequence[Buffer], *, media_type: str = "application/octet-stream") -> ObjectRef:
        check_key(key)
        digest = Digest()

        def write(partial: Path) -> int:
            return self._write(key, partial, buffers, digest)

        size = self._place(key, write)
        return ObjectRef(key=key, size=size, digest=str(digest))

    def put_file(self, key: str, path: Path, *, media_type: str = "application/octet-stream") -> ObjectRef:
        check_key(key)
        digest = Digest()
        with translated_os_errors(f"reading {path.name} to store it", key):
            source = map_path(path)

        def link_or_write(partial: Path) -> int:
            try:
                os.link(path, partial)
            except OSError:  # another filesystem, or one without links
                return self._write(key, partial, [source], digest)
            os.utime(partial)  # ``modified`` is when it was stored
            self._sync_file(partial)
            digest.update(source)
            return source.nbytes

        size = self._place(key, link_or_write)
        return ObjectRef(key=key, size=size, digest=str(digest))

    def read(self, ref: ObjectRef, *, max_bytes: int) -> memoryview:
        self._check_limit(ref, max_bytes)
        fd = self._open(ref)
        try:
            with translated_os_errors("reading the object", ref.key):
                data = map_file(fd, ref.size)
        finally:
            os.close(fd)
        digest = Digest()
        digest.update(data)
        self._check_digest(ref, digest)
        return data

    def open_stream(self, ref: ObjectRef) -> Iterator[bytes]:
        file = os.fdopen(self._open(ref), "rb", buffering=0)

        def pieces() -> Iterator[bytes]:
            with file, translated_os_errors("reading the object", ref.key):
                while piece := file.read(STREAM_BYTES):
                    yield piece

        return self._checked_stream(ref, pieces())

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            path = self._path(key)
            with translated_os_errors("deleting the object", key):
                with suppress(FileNotFoundError, NotADirectoryError):
                    path.unlink()
                self._remove_empty(path.parent)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        check_prefix(prefix)
        folder, _, _ = prefix.rpartition("/")
        with translated_os_errors("listing the objects", prefix):
            yield from self._walk(self._directory / folder, f"{folder}/" if folder else "", prefix)

    def prepare(self) -> None:
        with translated_os_errors("creating the object directory", str(self._directory)):
            self._partial.mkdir(parents=True, exist_ok=True)
        self._was_there = True

    def check(self) -> None:
        self._prepare_once()
        probe = self._partial / f"check-{uuid.uuid4().hex}"
        with translated_os_errors("writing to the object directory", str(self._directory)):
            require_room(self._partial, 0, self._min_free_bytes, key=str(self._directory))
            try:
                probe.write_bytes(b"omni-jobs")
            finally:
                probe.unlink(missing_ok=True)

    def remove_abandoned(self) -> None:
        with translated_os_errors("removing what was half written", str(self._partial)):
            for partial in self._partial.iterdir():
                with suppress(FileNotFoundError):
                    if time.time() - partial.stat().st_mtime > _ABANDONED_S:
                        partial.unlink()

    def _prepare_once(self) -> None:
        if not self._was_there:
            self.prepare()

    # Writing

    def _write(self, key: str, partial: Path, buffers: Sequence[Buffer], digest: Digest) -> int:
        views = byte_views(buffers)
        require_room(self._partial, sum(view.nbytes for view in views), self._min_free_bytes, key=key)
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            size = write_all(fd, views, on_bytes=digest.update)
            if self._sync:
                os.fdatasync(fd)
        finally:
            os.close(fd)
        return size

    def _sync_file(self, path: Path) -> None:
        if not self._sync:
            return
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def _place(self, key: str, write: Callable[[Path], int]) -> int:
        """Write a partial file, then rename it to its key."""
        target = self._path(key)
        self._prepare_once()
        partial = self._partial / uuid.uuid4().hex
        with translated_os_errors("storing the object", key):
            try:
                size = write(partial)
                self._rename(partial, target, key)
            finally:
                # Still there after a failure, or where it was the same file as the target.
                partial.unlink(missing_ok=True)
        return size

    def _rename(self, partial: Path, target: Path, key: str) -> None:
        for tries_left in reversed(range(_RENAME_TRIES)):
            try:
                changed = self._make_directories(target.parent)
                partial.replace(target)
                break
            except (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError) as error:
                if self._is_blocked(target):
                    raise StorageError("the key stands above or below another one", key=key) from error
                if not tries_left:  # else a delete took the directory while it was empty
                    raise
        if self._sync:
            for directory in changed:
                with suppress(FileNotFoundError):  # deleted again meanwhile
                    sync_directory(directory)

    def _make_directories(self, folder: Path) -> set[Path]:
        """Create a directory; those whose entries a put changes."""
        changed = {folder}
        missing = folder
        while missing != self._directory and not missing.exists():
            missing = missing.parent
            changed.add(missing)
        folder.mkdir(parents=True, exist_ok=True)
        return changed

    def _is_blocked(self, target: Path) -> bool:
        """Whether a directory stands where the object would, or an object where its directory would."""
        above = target.relative_to(self._directory).parents
        return target.is_dir() or any((self._directory / folder).is_file() for folder in above)

    # Reading

    def _path(self, key: str) -> Path:
        return self._directory / check_key(key)

    def _open(self, ref: ObjectRef) -> int:
        """An open file of the right size."""
        try:
            fd = os.open(self._path(ref.key), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ObjectMissing(key=ref.key) from error
        except OSError as error:
            raise StorageUnavailable(f"opening the object failed: {error.strerror}", key=ref.key) from error
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise ObjectMissing(key=ref.key)
            self._check_size(ref, found.st_size)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _walk(self, folder: Path, at: str, prefix: str) -> Iterator[StoredObject]:
        """Objects under one directory, depth first."""
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            key = f"{at}{entry.name}"
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                below = f"{key}/"
                if below.startswith(prefix) or prefix.startswith(below):
                    yield from self._walk(folder / entry.name, below, prefix)
            elif key.startswith(prefix):
                with suppress(FileNotFoundError):
                    about = entry.stat()
                    yield StoredObject(key, about.st_size, datetime.fromtimestamp(about.st_mtime, UTC))

    # Clean-up

    def _remove_empty(self, folder: Path) -> None:
        """Remove the directories that a delete left empty, up to the store's own."""
        while folder != self._directory:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:  # not empty
                return
            folder = folder.parent
