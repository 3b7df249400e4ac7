"""Memory that a server and one of its decoders share: media on their way in, results on their way out."""

import fcntl
import mmap
import os
import weakref

from omni_jobs.errors import DecodersUnavailable

KEPT_BYTES = 16 << 20  # media and results up to this size use the files that are kept: 5 megapixels


class MemoryFile:
    """A file in memory (memfd) of a sealed size, so that no other process can shorten what this one has mapped.

    Only pages that were written take memory. The file is closed when nothing refers to this object.
    """

    def __init__(self, name: str, size: int) -> None:
        """Create the file, ``size`` bytes of zeros. Raise DecodersUnavailable when the kernel has no memory for it."""
        try:
            self.descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            weakref.finalize(self, os.close, self.descriptor)
            os.ftruncate(self.descriptor, size)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)
        except OSError as error:
            raise DecodersUnavailable(f"no memory for a medium: {error}") from error

    def write(self, data: bytes | memoryview) -> None:
        """Write ``data`` at the file's start. Raise DecodersUnavailable when memory or the file is too short."""
        view, at = memoryview(data), 0
        try:
            while at < len(view):
                at += os.pwrite(self.descriptor, view[at:], at)
        except OSError as error:
            raise DecodersUnavailable(f"no memory for a medium: {error}") from error

    def map(self, nbytes: int) -> mmap.mmap:
        """Return a private mapping of the first ``nbytes`` bytes: changes to the mapping do not change the file."""
        return mmap.mmap(self.descriptor, nbytes, flags=mmap.MAP_PRIVATE)


class Exchange:
    """Two memory files of ``KEPT_BYTES``, for a medium and its result, which the wall uses for one task after another.

    They are kept because memory pages that were used before cost a fraction of new ones.
    """

    def __init__(self) -> None:
        self._files: list[MemoryFile] = []

    def files(self) -> tuple[MemoryFile, MemoryFile]:
        """Return the files for a medium and a result. Raise DecodersUnavailable when memory is short."""
        if not self._files:
            self._files = [MemoryFile("omni-jobs-medium", KEPT_BYTES), MemoryFile("omni-jobs-decoded", KEPT_BYTES)]
        medium, result = self._files
        return medium, result

    def copy_result(self, nbytes: int) -> bytearray:
        """Return a copy of the first ``nbytes`` bytes of the result's file, because the next task overwrites them."""
        copy = bytearray(nbytes)
        os.preadv(self._files[1].descriptor, [copy], 0)
        return copy
