"""``examine``: all examinations one after the other, of which none ends another."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from omni_jobs.doctor import host, models, services, tls
from omni_jobs.doctor.finding import Finding
from omni_jobs.errors import ConfigError, OmniJobsError, StorageFull
from omni_jobs.settings import Settings

EXAMINATIONS: Final[Mapping[str, Callable[[Settings], Iterator[Finding]]]] = {
    "settings": host.settings_,
    "database": services.database,
    "broker": services.broker,
    "storage": services.storage,
    "tls": tls.tls,
    "files": host.files,
    "disk": host.disk,
    "cards": host.cards,
    "pipelines": models.pipelines,
}
"""The examinations by name, in their order."""

_REMEDIES: Final = {
    "database": "start it, or correct OMNI_JOBS_DATABASE_URL, its schema (docs/operations/upgrade.md) or, if it takes "
    "no writes, the rights to its files or tables; omni-jobs migrate makes a new database",
    "broker": "start it, or correct OMNI_JOBS_BROKER_URL",
    "storage": "start it, or correct OMNI_JOBS_STORAGE_URL; omni-jobs storage prepare makes the bucket or directory",
    "tls": "give the API a certificate that can be used: docs/operations/tls.md",
    "pipelines": "correct OMNI_JOBS_STAGE_CONFIGS, OMNI_JOBS_PIPELINES or the file: omni-jobs pipelines check",
    "cards": "restart the host if its driver was just updated: docs/operations/gpus.md",
}

_NO_ROOM: Final = "free the disk (docs/operations/disk.md), or lower OMNI_JOBS_MIN_FREE_BYTES"

_KEYS: Final = "correct this variable of boto3, or the file that it names (docs/settings.md); no process starts with it"


def examine(settings: Settings, names: Collection[str] = tuple(EXAMINATIONS)) -> Iterator[Finding]:
    """Yield what the examinations of these names find, as they find it. What one raises is an error that it found."""
    for name in EXAMINATIONS:
        if name not in names:
            continue
        try:
            yield from EXAMINATIONS[name](settings)
        except (OmniJobsError, OSError) as error:
            message, *_ = str(error).splitlines()  # a driver adds advice of its own
            yield Finding(about=name, state="error", message=message, remedy=_remedy(name, error))


def _remedy(name: str, error: OmniJobsError | OSError) -> str | None:
    if isinstance(error, StorageFull):
        return _NO_ROOM
    if isinstance(error, ConfigError) and (error.field or "").startswith("AWS_"):
        return _KEYS
    return _REMEDIES.get(name)
