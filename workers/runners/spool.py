"""The spool: a private directory through which a worker and its engine's processes hand each other tensors.

Each file is a payload (omni_jobs.payloads). One side writes it once; the other maps it and removes it. The directory
is in shared memory if there is some. Its owner holds a lock on it, so that the next spool on the host finds and removes
the directories of killed workers. It knows them by their names, because an operator may name a base that holds
other directories.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from omni_jobs.errors import ConfigError, PayloadCorrupt
from omni_jobs.files import require_room
from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload
from workers.stages.tensors import from_torch, to_torch
from workers.stages.types import TensorTree, convert_tensors

_MAX_BYTES = 1 << 40  # we are both writer and reader, and everything written must be readable
_LOCK = ".lock"
_VALUES = "values"  # one value of the payload has them all, so their names are free
_PREFIX = "omni-jobs-spool-"


class SpoolFiles:
    """Reads and writes the files of a spool by their bare names, in any process that knows its directory."""

    def __init__(self, directory: Path, min_free_bytes: int = 0) -> None:
        """Use the spool in ``directory``, which exists.

        ``min_free_bytes`` stay free in its filesystem, but not more than a tenth of it, because /dev/shm may be small.
        """
        self.directory = directory
        self.min_free_bytes = min_free_bytes

    @property
    def capacity(self) -> int:
        """The bytes of the spool's filesystem without those that stay free. Constant while it is mounted."""
        size, reserve = self._sizes()
        return size - reserve

    def write(self, name: str, tensors: Mapping[str, TensorTree], values: Mapping[str, Any]) -> None:
        """Write the file ``name``, letters and digits: tensors, lists and dicts of them, and JSON values.

        Raises PayloadError for a name, tensors or values that it cannot take, StorageFull when there is no room,
        StorageUnavailable when it cannot be written, and OSError when the directory is gone.
        """
        wire = convert_tensors(tensors, from_torch)
        payload = Payload(
            manifest=Manifest(kind="spool", job_id=name, stage="spool", attempt=1),
            additional_information=AdditionalInformationPayload(wire, {_VALUES: dict(values)}),
        )
        path = self._path(name)
        require_room(self.directory, payload.nbytes, self._sizes()[1], key=name)
        payload.write(path)

    def read(self, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return (tensors, values) of a file; the tensors are read-only views of the mapped file.

        Raises PayloadError when the file is no payload, and StorageUnavailable when it cannot be read.
        """
        information = Payload.open(self._path(name), _MAX_BYTES, key=name).additional_information
        if information is None:
            raise PayloadCorrupt("no additional information", field="additional_information", key=name)
        return convert_tensors(information.tensors, to_torch), information.value(_VALUES, dict)

    def take(self, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read a file as ``read`` does, and remove it in any case."""
        try:
            return self.read(name)
        finally:
            self.remove(name)

    def remove(self, name: str) -> None:
        """Remove a file, which may be gone already. Tensors that were read from it stay valid."""
        self._path(name).unlink(missing_ok=True)

    def _sizes(self) -> tuple[int, int]:
        """Return the bytes of the filesystem, and those of them that stay free."""
        status = os.statvfs(self.directory)
        size = status.f_blocks * status.f_frsize
        return size, min(self.min_free_bytes, size // 10)

    def _path(self, name: str) -> Path:
        if not name.isalnum():
            raise PayloadCorrupt(f"{name!r} is not a spool file's name", field="name")
        return self.directory / name


class Spool(SpoolFiles):
    """The owner's side of a spool: makes its directory, and removes it with ``close``."""

    def __init__(self, base: Path | None = None, min_free_bytes: int = 0) -> None:
        """Make a new directory in ``base`` (None: in shared memory) and remove those of dead owners there.

        Raises ConfigError when ``base`` belongs to another user or cannot be used.
        """
        base = _default_base() if base is None else base
        self._held = ExitStack()
        try:
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
            if base.stat().st_uid != os.getuid():
                raise ConfigError(f"the spool directory {base} belongs to another user", field="spool_dir")
            with ExitStack() as starting:
                _lock(base / _LOCK, starting, wait=True)
                _remove_stale(base)
                directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
                _lock(directory / _LOCK, self._held, wait=True)
        except OSError as error:
            raise ConfigError(f"no spool in {base}: {error}", field="spool_dir") from error
        super().__init__(directory, min_free_bytes)

    def close(self) -> None:
        """Remove the directory; tensors that were read from its files stay valid. Safe to call twice."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self._held.close()


def _default_base() -> Path:
    shared = Path("/dev/shm")  # noqa: S108  (a directory of mode 0700 below it)
    root = shared if shared.is_dir() and os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    return root / f"omni-jobs-{os.getuid()}"


def _remove_stale(base: Path) -> None:
    for directory in base.glob(f"{_PREFIX}*"):
        if directory.is_dir() and not directory.is_symlink():
            with ExitStack() as stack:
                if _lock(directory / _LOCK, stack, wait=False):
                    shutil.rmtree(directory, ignore_errors=True)


def _lock(path: Path, stack: ExitStack, *, wait: bool) -> bool:
    """Lock the file exclusively until ``stack`` closes. Return False when another process holds it, unless ``wait``."""
    file = stack.enter_context(path.open("ab"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
