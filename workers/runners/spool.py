"""The spool: a private directory through which a worker and its engine's processes hand each other tensors.

One payload file per handing over (omni_jobs.payloads): written once, mapped by its
reader, who removes it. In shared memory where there is some. Whoever uses a directory
holds its lock, so the next start on the host removes what a killed worker has left.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from omni_jobs.errors import ConfigError, PayloadCorrupt
from omni_jobs.files import require_room
from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload, PayloadLimits, Tensor
from workers.stages.tensors import from_torch, to_torch

__all__ = ["Spool", "SpoolReader"]

_LIMITS = PayloadLimits(max_bytes=1 << 40)  # ours on both ends: what was written must be readable
_LOCK = ".lock"


class SpoolReader:
    """A spool directory as every process knows it: by path; files by bare name."""

    def __init__(self, directory: Path, min_free_bytes: int = 0) -> None:
        """``min_free_bytes`` stay free in the filesystem, though no more than a tenth of it: /dev/shm may be small."""
        self.directory = directory
        self.min_free_bytes = min_free_bytes

    @property
    def capacity(self) -> int:
        """Bytes that its filesystem can hold, less those that stay free; fixed for as long as it is mounted so."""
        size = self._filesystem_bytes()
        return size - self._reserve(size)

    def write(self, name: str, information: Mapping[str, Any]) -> None:
        """Write tensors, lists and dicts of tensors, and JSON values.

        Raises PayloadError for what payloads cannot hold and StorageFull when there is no room.
        """
        tensors: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for key, value in information.items():
            if isinstance(value, torch.Tensor):
                tensors[key] = from_torch(value)
            elif isinstance(value, Mapping) and _all_tensors(value.values()):
                tensors[key] = {inner: from_torch(tensor) for inner, tensor in value.items()}
            elif isinstance(value, list | tuple) and _all_tensors(value):
                tensors[key] = [from_torch(tensor) for tensor in value]
            else:
                values[key] = value
        payload = Payload(
            manifest=Manifest(kind="spool", job_id=name, stage="spool", attempt=1),
            additional_information=AdditionalInformationPayload(tensors=tensors, values=values),
        )
        path = self._path(name)
        require_room(self.directory, payload.nbytes, self._reserve(self._filesystem_bytes()), key=name)
        payload.write(path)

    def _reserve(self, filesystem_bytes: int) -> int:
        return min(self.min_free_bytes, filesystem_bytes // 10)

    def _filesystem_bytes(self) -> int:
        found = os.statvfs(self.directory)
        return found.f_blocks * found.f_frsize

    def read(self, name: str) -> dict[str, Any]:
        """What was written, its tensors read-only views on the file's map.

        Raises PayloadError and StorageUnavailable.
        """
        information = Payload.open(self._path(name), _LIMITS, key=name).additional_information
        if information is None:
            raise PayloadCorrupt("no additional information", field="additional_information", key=name)
        found: dict[str, Any] = dict(information.values)
        for key, value in information.tensors.items():
            if isinstance(value, Tensor):
                found[key] = to_torch(value)
            elif isinstance(value, Mapping):
                found[key] = {inner: to_torch(tensor) for inner, tensor in value.items()}
            else:
                found[key] = [to_torch(tensor) for tensor in value]
        return found

    def remove(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        if not name.isalnum():
            raise PayloadCorrupt(f"{name!r} is not a spool file's name", field="name")
        return self.directory / name


def _all_tensors(values: Any) -> bool:
    return bool(values) and all(isinstance(value, torch.Tensor) for value in values)


class Spool(SpoolReader):
    """The owner's side: makes the directory, removes it at the end."""

    def __init__(self, base: Path | None = None, min_free_bytes: int = 0) -> None:
        """Removes what dead owners left in ``base`` (None: shared memory). Raises ConfigError."""
        base = _default_base() if base is None else base
        self._held = ExitStack()
        try:
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
            if base.stat().st_uid != os.getuid():
                raise ConfigError(f"the spool directory {base} belongs to another user", field="spool_dir")
            with ExitStack() as starting:
                _lock(base / _LOCK, starting, wait=True)
                _remove_stale(base)
                directory = Path(tempfile.mkdtemp(dir=base))
                _lock(directory / _LOCK, self._held, wait=True)
        except OSError as error:
            raise ConfigError(f"no spool in {base}: {error}", field="spool_dir") from error
        super().__init__(directory, min_free_bytes)

    def close(self) -> None:
        """Remove the directory; maps that are open stay valid. Safe to call twice."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self._held.close()


def _default_base() -> Path:
    shared = Path("/dev/shm")  # noqa: S108  (a directory of mode 0700 below it)
    root = shared if shared.is_dir() and os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    return root / f"omni-jobs-{os.getuid()}"


def _remove_stale(base: Path) -> None:
    for directory in base.iterdir():
        if directory.is_dir():
            with ExitStack() as stack:
                if _lock(directory / _LOCK, stack, wait=False):
                    shutil.rmtree(directory, ignore_errors=True)


def _lock(path: Path, stack: ExitStack, *, wait: bool) -> bool:
    """Hold an exclusive lock until ``stack`` closes; False when another process holds it."""
    file = stack.enter_context(path.open("ab"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
