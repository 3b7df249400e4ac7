"""Objects as files in a directory: the embedded default.

The first two segments of a key are directories, the rest is the file's name, with ","
for "/": a directory of its own for each job, and more within, would cost a put and a
delete more than the bytes do. Directories stay. An object is written in ``.partial`` (on
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
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from omni_jobs.errors import ObjectMissing, StorageError, StorageUnavailable
from omni_jobs.files import (
    byte_views,
    map_file,
    require_room,
    sync_directory,
    translated_os_errors,
    write_all,
)
from omni_jobs.storage.keys import check_key, check_prefix
from omni_jobs.storage.object_store import STREAM_BYTES, Digest, ObjectRef, ObjectStore, StoredObject

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["LocalObjectStore"]

logger = logging.getLogger(__name__)

_PARTIAL: Final = ".partial"
_ABANDONED_S: Final = 3600.0  # since its last byte: nobody writes it any more
_DIRECTORIES: Final = 2
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


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
        self._lasting: set[Path] = set()  # directories whose own entries are synced
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
            path = self.path(key)
            with (
                translated_os_errors("deleting the object", key),
                suppress(FileNotFoundError, NotADirectoryError),
                self._folder_of(path) as folder,
            ):
                os.unlink(path.name, dir_fd=folder)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        *folders, _ = check_prefix(prefix).split("/", _DIRECTORIES)
        if any(self._directory.joinpath(*folders[:depth]).is_symlink() for depth in range(1, len(folders) + 1)):
            return  # links are not followed
        with translated_os_errors("listing the objects", prefix):
            yield from self._walk(folders, prefix)

    def path(self, key: str) -> Path:
        """The file of an object, whether it is there or not. Raises StorageError for no key."""
        *folders, name = check_key(key).split("/", _DIRECTORIES)
        return self._directory.joinpath(*folders, name.replace("/", ","))

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

    def _place(self, key: str, write: Callable[[Path], int]) -> int:
        """Write a partial file, then rename it to its key."""
        target = self.path(key)
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
        folder = target.parent
        try:
            self._make_lasting(folder)
            try:
                partial.replace(target)
            except FileNotFoundError:  # somebody took the directory away
                self._lasting.discard(folder)
                self._make_lasting(folder)
                partial.replace(target)
        except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
            raise StorageError("the key stands above or below another one", key=key) from error
        if self._sync:
            sync_directory(folder)

    def _make_lasting(self, folder: Path) -> None:
        """Create a directory, once, and have the entries on the way to it survive a power loss."""
        if folder in self._lasting:
            return
        folder.mkdir(parents=True, exist_ok=True)
        for inner in (folder, *folder.parents):
            if inner == self._directory:
                break
            if inner.is_symlink():
                raise StorageError(f"{inner.name} in the object directory is a link, which is not followed")
        above = folder
        while self._sync and above != self._directory:
            above = above.parent
            sync_directory(above)
        self._lasting.add(folder)

    # Reading

    def _open(self, ref: ObjectRef) -> int:
        """An open file of the right size."""
        path = self.path(ref.key)
        try:
            with self._folder_of(path) as folder:  # without O_NONBLOCK a FIFO in its place would be waited for
                fd = os.open(path.name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
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

    @contextmanager
    def _folder_of(self, path: Path) -> Iterator[int]:
        """The open directory of an object's file, reached from the store's own without following a link."""
        opened = os.open(self._directory, _FOLDER)
        try:
            for name in path.parent.relative_to(self._directory).parts:
                below = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=opened)
                os.close(opened)
                opened = below
            yield opened
        finally:
            os.close(opened)

    def _walk(self, folders: Sequence[str], prefix: str) -> Iterator[StoredObject]:
        """Objects of one directory and those within, by name."""
        try:
            with os.scandir(self._directory.joinpath(*folders)) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            key = "/".join((*folders, entry.name.replace(",", "/")))
            if entry.name.startswith(".") or entry.is_symlink():
                continue
            if entry.is_dir(follow_symlinks=False):
                is_above = f"{key}/".startswith(prefix) or prefix.startswith(f"{key}/")
                if is_above and len(folders) < _DIRECTORIES:
                    yield from self._walk((*folders, entry.name), prefix)
            elif key.startswith(prefix):
                with suppress(FileNotFoundError):
                    about = entry.stat(follow_symlinks=False)
                    yield StoredObject(key, about.st_size, datetime.fromtimestamp(about.st_mtime, UTC))
