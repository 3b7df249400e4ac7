"""Files as payloads and the local object store use them: written whole or not at all, read by mmap."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from omni_jobs.errors import StorageFull, StorageUnavailable

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "byte_views",
    "map_file",
    "require_room",
    "sync_directory",
    "translated_os_errors",
    "write_all",
    "write_atomically",
]

_BATCH_BYTES = 1 << 20  # hashed and written while it is in the CPU's cache
_BATCH_BUFFERS = 512  # below Linux' IOV_MAX
_MAP_NORESERVE = 0x4000  # Linux'; Python's mmap module does not name it before 3.13


def byte_views(buffers: Iterable[Buffer]) -> list[memoryview]:
    """Flat views of bytes on C-contiguous buffers; empty ones are left out."""
    views = [memoryview(buffer) for buffer in buffers]
    return [view.cast("B") for view in views if view.nbytes]


def write_all(fd: int, buffers: Sequence[Buffer], *, on_bytes: Callable[[memoryview], object] | None = None) -> int:
    """Write the buffers one after the other, without joining them; the number of bytes written.

    ``on_bytes`` sees every byte in order just before it is written (a digest in the same pass).
    """
    written = 0
    for batch in _batches(byte_views(buffers)):
        if on_bytes is not None:
            for view in batch:
                on_bytes(view)
        while batch:
            count = os.writev(fd, batch)
            written += count
            batch = _after(batch, count)
    return written


def _batches(views: list[memoryview]) -> Iterator[list[memoryview]]:
    batch: list[memoryview] = []
    room = _BATCH_BYTES
    for view in views:
        start = 0
        while start < view.nbytes:
            part = view[start : start + room]
            batch.append(part)
            start += part.nbytes
            room -= part.nbytes
            if room == 0 or len(batch) == _BATCH_BUFFERS:
                yield batch
                batch, room = [], _BATCH_BYTES
    if batch:
        yield batch


def _after(batch: list[memoryview], count: int) -> list[memoryview]:
    for index, view in enumerate(batch):
        if count < view.nbytes:
            return [view[count:], *batch[index + 1 :]]
        count -= view.nbytes
    return []


def write_atomically(path: Path, buffers: Sequence[Buffer]) -> int:
    """Write a file beside its place, then rename it there; the number of bytes written.

    Not synced: it survives the process, not a power loss. Raises OSError.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        try:
            written = write_all(fd, buffers)
        finally:
            os.close(fd)
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    return written


def map_file(fd: int, size: int) -> memoryview:
    """The first ``size`` bytes of an open file, read-only, mapped until the last view of them is gone.

    The mapping is private and copy-on-write beneath the read-only view: code that
    writes through a raw pointer (a tensor changed in place) changes its own copy of
    a page, neither the file nor a page it may not touch. Memory is set aside for no
    page before it is changed, so that files larger than the memory can be mapped.
    """
    if size == 0:
        return memoryview(b"")
    mapped = mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE | _MAP_NORESERVE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    mapped.madvise(mmap.MADV_SEQUENTIAL)
    return memoryview(mapped).toreadonly()


def sync_directory(path: Path) -> None:
    """Make the entries of a directory survive a power loss."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def require_room(directory: Path, size: int, min_free_bytes: int, *, key: str) -> None:
    """Raise StorageFull when ``size`` more bytes would leave fewer than ``min_free_bytes`` free in the filesystem.

    The reserve is for what must go on when no object can be stored: SQL, logs, the broker's
    file. 0: whatever fits. Several writers at once may each find the last room; who finds
    none while it writes gets StorageFull as well. Raises OSError where there is no directory.
    """
    if min_free_bytes == 0:
        return
    found = os.statvfs(directory)
    free = found.f_bavail * found.f_frsize
    if free - size < min_free_bytes:
        raise StorageFull(
            f"no room: {_mib(free)} free, {_mib(size)} to store, {_mib(min_free_bytes)} to stay free", key=key
        )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


@contextmanager
def translated_os_errors(doing: str, key: str) -> Iterator[None]:
    """Raise StorageFull where the operating system finds no room, StorageUnavailable for its other errors."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"{doing} failed: no space left on the device", key=key) from error
        reason = (error.strerror or str(error)).lower()
        raise StorageUnavailable(f"{doing} failed: {reason}", key=key) from error
