"""Objects as files of a local directory: the object store of the embedded stack.

The first two segments of a key are directories; the rest is the file's name, with "," for "/". A directory for each
job, and more within it, would cost a put and a delete more than their bytes do. Directories are never removed.

An object is written to ``.partial``, on the same filesystem, and renamed to its place. With ``sync`` (the setting
``storage_sync``) a put syncs file and directory before it returns, so that no row in SQL refers to bytes that a power
loss took. A killed process loses nothing either way.

A directory that cannot be made at the start (a late mount, a full disk) is tried again by every put and check until it
is there. One that vanishes later is not made anew, because it may be a mount that comes back with its objects. Until
then no object counts as missing.
"""

from __future__ import annotations

import logging
import os
import stat
import time
import uuid
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xxhash import xxh3_128

from omni_jobs.errors import ObjectCorrupt, ObjectMissing, StorageError, StorageUnavailable
from omni_jobs.files import (
    byte_views,
    map_file,
    require_room,
    sync_directory,
    translate_os_errors,
    write_all,
)
from omni_jobs.storage.keys import check_key, check_prefix
from omni_jobs.storage.object_store import STREAM_BYTES, ObjectRef, ObjectStore, StoredObject, digest_text

if TYPE_CHECKING:
    from typing_extensions import Buffer

logger = logging.getLogger(__name__)

_PARTIAL: Final = ".partial"
_ABANDONED_S: Final = 3600.0  # a partial file that grew no more for this long has lost its writer
_DIRECTORIES: Final = 2  # of a key's segments
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK, because opening a FIFO in an object's place would wait for its writer.
_READ_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class LocalObjectStore(ObjectStore):
    """The object store in one local directory, which several processes may share.

    A put is refused with StorageFull when it would leave fewer than ``min_free_bytes`` of the filesystem free. The
    constructor raises nothing: it logs why the directory cannot be used. While the directory is missing, methods
    raise StorageUnavailable; ``prepare`` makes it.
    """

    def __init__(self, directory: Path, *, sync: bool = True, min_free_bytes: int = 0) -> None:
        self._directory = directory.absolute()
        self._partial = self._directory / _PARTIAL
        self._sync = sync
        self._min_free_bytes = min_free_bytes
        self._is_prepared = False
        self._made_folders: set[Path] = set()
        try:
            self.prepare()
            self.remove_abandoned()
        except StorageUnavailable as error:
            logger.error("the object store is not usable yet: %s", error)

    def put(self, key: str, buffers: Sequence[Buffer], *, media_type: str = "application/octet-stream") -> ObjectRef:
        target = self.path(key)
        views = byte_views(buffers)
        digest = xxh3_128()
        self._prepare_once()
        partial = self._partial / uuid.uuid4().hex
        with translate_os_errors("storing the object", key):
            require_room(self._partial, sum(view.nbytes for view in views), self._min_free_bytes, key=key)
            try:
                with partial.open("xb", buffering=0) as file:
                    size = write_all(file.fileno(), views, on_bytes=digest.update)
                    if self._sync:
                        os.fdatasync(file.fileno())
                self._rename(partial, target, key)
            finally:
                partial.unlink(missing_ok=True)
        return ObjectRef(key=key, size=size, digest=digest_text(digest))

    def read(self, ref: ObjectRef, *, max_bytes: int) -> memoryview:
        self._check_limit(ref, max_bytes)
        with self._open(ref) as file, translate_os_errors("reading the object", ref.key):
            data = map_file(file.fileno(), ref.size)
        self._check_digest(ref, xxh3_128(data))
        return data

    def open_stream(self, ref: ObjectRef) -> Generator[bytes]:
        file = self._open(ref)

        def pieces() -> Generator[bytes]:
            with file, translate_os_errors("reading the object", ref.key):
                while piece := file.read(STREAM_BYTES):
                    yield piece

        return self._checked_stream(ref, pieces())

    def open_range(self, ref: ObjectRef, start: int, stop: int) -> Generator[bytes]:
        self._check_range(ref, start, stop)
        file = self._open(ref)

        def pieces() -> Generator[bytes]:
            with file, translate_os_errors("reading the object", ref.key):
                at = file.seek(start)
                while at < stop:
                    piece = file.read(min(STREAM_BYTES, stop - at))
                    if not piece:
                        raise ObjectCorrupt(f"it ends at byte {at} of {ref.size}", key=ref.key)
                    at += len(piece)
                    yield piece

        return pieces()

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            path = self.path(key)
            with translate_os_errors("deleting the object", key):
                try:
                    with self._open_folder(path) as folder:
                        os.unlink(path.name, dir_fd=folder)
                except (FileNotFoundError, NotADirectoryError):
                    self._require_directory(key)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        *folders, _ = check_prefix(prefix).split("/", _DIRECTORIES)
        if any(self._directory.joinpath(*folders[:depth]).is_symlink() for depth in range(1, len(folders) + 1)):
            return  # links are not followed
        with translate_os_errors("listing the objects", prefix):
            yield from self._walk(folders, prefix)

    def prepare(self) -> None:
        with translate_os_errors("creating the object directory", str(self._directory)):
            self._partial.mkdir(parents=True, exist_ok=True)
        self._is_prepared = True

    def check(self) -> None:
        self._prepare_once()
        probe = self._partial / f"check-{uuid.uuid4().hex}"
        with translate_os_errors("writing to the object directory", str(self._directory)):
            require_room(self._partial, 0, self._min_free_bytes, key=str(self._directory))
            try:
                probe.write_bytes(b"omni-jobs")
            finally:
                probe.unlink(missing_ok=True)

    def remove_abandoned(self) -> None:
        with translate_os_errors("removing incomplete files", str(self._partial)):
            for partial in self._partial.iterdir():
                with suppress(FileNotFoundError):
                    if time.time() - partial.stat().st_mtime > _ABANDONED_S:
                        partial.unlink()

    def path(self, key: str) -> Path:
        """Return the path that an object's file has or would have. Raises StorageError for an invalid key."""
        *folders, name = check_key(key).split("/", _DIRECTORIES)
        return self._directory.joinpath(*folders, name.replace("/", ","))

    def _prepare_once(self) -> None:
        if not self._is_prepared:
            self.prepare()

    def _require_directory(self, key: str) -> None:
        """Raise StorageUnavailable if not only an object is missing but the store's own directory."""
        with translate_os_errors("finding the object directory", key):
            self._partial.stat()

    # Writing

    def _rename(self, partial: Path, target: Path, key: str) -> None:
        folder = target.parent
        try:
            self._make_folder(folder)
            try:
                partial.replace(target)
            except FileNotFoundError:  # somebody removed the directory
                self._made_folders.discard(folder)
                self._make_folder(folder)
                partial.replace(target)
        except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
            raise StorageError("the key stands above or below another one", key=key) from error
        if self._sync:
            sync_directory(folder)

    def _make_folder(self, folder: Path) -> None:
        """Create a directory once; with ``sync`` its own entry, and those above it, survive a power loss."""
        if folder in self._made_folders:
            return
        folder.mkdir(parents=True, exist_ok=True)
        above = folder
        while above != self._directory:
            if above.is_symlink():
                raise StorageError(f"{above.name} in the object directory is a link, which is not followed")
            above = above.parent
            if self._sync:
                sync_directory(above)
        self._made_folders.add(folder)

    # Reading

    def _open(self, ref: ObjectRef) -> FileIO:
        """Open an object's file and check its size."""
        path = self.path(ref.key)
        try:
            with self._open_folder(path) as folder:
                fd = os.open(path.name, _READ_FLAGS, dir_fd=folder)
        except (FileNotFoundError, NotADirectoryError) as error:
            self._require_directory(ref.key)
            raise ObjectMissing(key=ref.key) from error
        except OSError as error:
            raise StorageUnavailable(f"opening the object failed: {error.strerror}", key=ref.key) from error
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise ObjectMissing(key=ref.key)
            self._check_size(ref, status.st_size)
        except BaseException:
            os.close(fd)
            raise
        return FileIO(fd)

    @contextmanager
    def _open_folder(self, path: Path) -> Iterator[int]:
        """Open the directory of an object's file, from the store's own downwards, without following a link."""
        opened = os.open(self._directory, _FOLDER_FLAGS)
        try:
            for name in path.parent.relative_to(self._directory).parts:
                inner = os.open(name, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=opened)
                os.close(opened)
                opened = inner
            yield opened
        finally:
            os.close(opened)

    def _walk(self, folders: Sequence[str], prefix: str) -> Iterator[StoredObject]:
        """Yield the objects of one directory, and of those in it, whose keys begin with ``prefix``."""
        try:
            with os.scandir(self._directory.joinpath(*folders)) as scan:
                entries = list(scan)
        except (FileNotFoundError, NotADirectoryError):
            self._require_directory(prefix)
            return
        for entry in entries:
            key = "/".join((*folders, entry.name.replace(",", "/")))
            if entry.name.startswith(".") or entry.is_symlink():
                continue
            if entry.is_dir(follow_symlinks=False):
                may_match = f"{key}/".startswith(prefix) or prefix.startswith(f"{key}/")
                if may_match and len(folders) < _DIRECTORIES:
                    yield from self._walk((*folders, entry.name), prefix)
            elif key.startswith(prefix):
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    yield StoredObject(key, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))
