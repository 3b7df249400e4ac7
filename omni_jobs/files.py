"""Files of payloads and of the local object store: written whole or not at all, read through mmap."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from omni_jobs.errors import StorageFull, StorageUnavailable

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PIECE_BYTES = 1 << 20  # hashed and written while it is in the CPU's cache
_GATHERED_BYTES = 64 << 10  # smaller buffers are gathered until they have this many, and then written
_MAP_NORESERVE = 0x4000  # Linux'; Python's mmap module does not name it before 3.13


def byte_views(buffers: Iterable[Buffer]) -> list[memoryview]:
    """Return a flat view of the bytes of each C-contiguous buffer; leave out the empty ones."""
    views = [memoryview(buffer) for buffer in buffers]
    return [view.cast("B") for view in views if view.nbytes]


def write_all(fd: int, buffers: Sequence[Buffer], *, on_bytes: Callable[[memoryview], object] | None = None) -> int:
    """Write all buffers to an open file, one after the other, and return the number of bytes. Raises OSError.

    ``on_bytes`` gets every byte in order just before it is written, so that a digest needs no second pass.
    """
    written = 0
    with open(fd, "wb", buffering=_GATHERED_BYTES, closefd=False) as file:
        for view in byte_views(buffers):
            for start in range(0, view.nbytes, _PIECE_BYTES):
                piece = view[start : start + _PIECE_BYTES]
                if on_bytes is not None:
                    on_bytes(piece)
                written += file.write(piece)
    return written


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Context manager: open a file beside its place, and rename it there at the end. Raises OSError.

    If the block raises, nothing is left. The file is not synced: it survives the process, but not a power loss.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def map_file(fd: int, size: int) -> memoryview:
    """Map the first ``size`` bytes of an open file; return a read-only view, which keeps the mapping alive.

    The mapping is private and copy-on-write: code that writes through a raw pointer (a tensor changed in place)
    changes its own copy of a page, not the file. It reserves no memory, so that a file larger than the memory can be
    mapped. Raises OSError, and ValueError for a file of fewer bytes.
    """
    if size == 0:
        return memoryview(b"")
    mapped = mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE | _MAP_NORESERVE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    mapped.madvise(mmap.MADV_SEQUENTIAL)
    return memoryview(mapped).toreadonly()


def sync_directory(path: Path) -> None:
    """Make the entries of a directory survive a power loss. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def require_room(directory: Path, size: int, min_free_bytes: int, *, key: str) -> None:
    """Raise StorageFull, naming ``key``, when ``size`` more bytes would leave fewer than ``min_free_bytes`` free.

    The reserve is for files that must grow while no object can be stored: SQL's, the broker's, logs. 0 reserves
    nothing. Writers that check at the same time may use part of it. Raises OSError when there is no directory.
    """
    if min_free_bytes == 0:
        return
    status = os.statvfs(directory)
    free = status.f_bavail * status.f_frsize
    if free - size < min_free_bytes:
        raise StorageFull(
            f"no room: {_mib(free)} free, {_mib(size)} to store, {_mib(min_free_bytes)} to stay free", key=key
        )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


@contextmanager
def translate_os_errors(action: str, key: str) -> Iterator[None]:
    """Context manager: turn an OSError within into StorageFull (out of space or quota) or else StorageUnavailable."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"{action} failed: no space left on the device", key=key) from error
        reason = (error.strerror or str(error)).lower()
        raise StorageUnavailable(f"{action} failed: {reason}", key=key) from error
