"""This host: its settings, the files that a process may open, the room on its disks, its graphics cards."""

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

from omni_jobs.cards import cards_of_host
from omni_jobs.doctor.finding import Finding
from omni_jobs.logs.secrets import without_secrets
from omni_jobs.settings import Settings, unknown_variables
from omni_jobs.stack.data_directory import is_refused

_FILES: Final = 4096  # that a process should be able to open: an API server's connections, an engine's files
_FREE_BYTES: Final = 5 << 30  # for a checkpoint's compiled kernels, uploads and logs
_SHARED_BYTES: Final = 1 << 30  # /dev/shm, by which an engine's processes pass tensors
_DRIVER: Final = 580  # CUDA 13.0, for which torch is built


def settings_(settings: Settings) -> Iterator[Finding]:
    """Tell what is set, without secrets, and which variables nothing reads."""
    shown = {name: _shown(getattr(settings, name)) for name in sorted(settings.model_fields_set)}
    count = f"{len(shown)} of {len(type(settings).model_fields)} are set: {', '.join(shown) or 'none'}"
    yield Finding(about="settings", state="ok", message=count, figures=shown)
    for line in unknown_variables(os.environ):
        yield Finding(about="settings", state="warning", message=line, remedy="correct its name, or remove it")


def _shown(value: object) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    return "…" if isinstance(value, SecretStr) else without_secrets(str(value))


def files(settings: Settings) -> Iterator[Finding]:
    """Look at the limit on open files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = "any number of" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    if hard != resource.RLIM_INFINITY and hard < _FILES:
        yield Finding(
            about="files",
            state="warning",
            message=f"a process may open {most} files",
            remedy=f"raise the hard limit to {_FILES:,} (ulimit -Hn, LimitNOFILE= of a unit, ulimits of a container)",
            figures={"most": hard},
        )
    else:
        yield Finding(about="files", state="ok", message=f"a process may open {most} files", figures={"most": hard})


def disk(settings: Settings) -> Iterator[Finding]:
    """Look at the room for data, for files of the moment, and in the memory that processes share.

    Also at who may enter the data directory, where a process has it.
    """
    data_dir = settings.data_dir.expanduser().resolve()
    if (settings.database_url is None or settings.storage_url is None) and is_refused(data_dir):
        message = f"{data_dir} is open to other users, or belongs to one: no process starts with it"
        remedy = "close it (chown, chmod 700), or choose another directory by OMNI_JOBS_DATA_DIR"
        yield Finding(about="disk", state="error", message=message, remedy=remedy)
    wanted = {
        settings.data_dir.expanduser(): max(_FREE_BYTES, settings.min_free_bytes),
        Path(tempfile.gettempdir()): _FREE_BYTES,
        Path("/dev/shm"): _SHARED_BYTES,  # noqa: S108 — its room is looked at, and no file made in it
    }
    for directory, least in wanted.items():
        there = next((each for each in (directory, *directory.parents) if each.exists()), None)
        if there is None:
            continue
        free = shutil.disk_usage(there).free
        message = f"{directory} has {free / 1e9:,.1f} GB free"
        figures = {"directory": str(directory), "free_bytes": free}
        if free < least:
            remedy = f"have {least / 1e9:,.1f} GB free there: docs/operations/disk.md"
            yield Finding(about="disk", state="warning", message=message, remedy=remedy, figures=figures)
        else:
            yield Finding(about="disk", state="ok", message=message, figures=figures)


def cards(settings: Settings) -> Iterator[Finding]:
    """Look at the graphics cards and their driver. Raises ConfigError if the driver fails."""
    found = cards_of_host()
    if not found:
        wants = settings.device == "cuda"
        yield Finding(
            about="cards",
            state="error" if wants else "ok",
            message="no NVIDIA driver is here" + ("" if wants else ": no stage runs on a card"),
            remedy="install the driver, or set OMNI_JOBS_DEVICE=cpu: docs/operations/gpus.md" if wants else None,
        )
    for card in found:
        room = f"{card.free_bytes / 1e9:.1f} of {card.total_bytes / 1e9:.1f} GB free"
        is_old = int(card.driver.partition(".")[0]) < _DRIVER
        yield Finding(
            about="cards",
            state="error" if is_old else "ok",
            message=f"card {card.number}, {card.name}: {room}, driver {card.driver}",
            remedy=f"install a driver {_DRIVER} or newer, because torch is built for CUDA 13.0" if is_old else None,
            figures=card._asdict(),
        )
