"""``ServerReadiness``: whether an API process can take and run jobs, and why not."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from omni_jobs.api.shared_checks import SharedCheck, SharedChecks
from omni_jobs.broker.broker import Broker
from omni_jobs.database.database import Database
from omni_jobs.errors import BrokerUnavailable, DatabaseUnavailable, OmniJobsError, StorageUnavailable
from omni_jobs.storage import ObjectStore
from omni_jobs.views import ErrorView

_WRITE_EVERY_S = 3.0
_PUT_EVERY_S = 20.0  # a service may charge for each
_PIPELINES_LIMIT_S = 60.0  # the first time, tokenizers are loaded


@dataclass(frozen=True, slots=True)
class Troubles:
    """What is wrong with a server. ``pipelines`` has an entry for each; None where all is well."""

    database: OmniJobsError | None
    broker: OmniJobsError | None
    storage: OmniJobsError | None
    pipelines: Mapping[str, ErrorView | None]
    broken_files: bool  # a pipeline's file is one with which no process would start

    @property
    def status(self) -> Literal["ready", "degraded", "unavailable"]:
        """Return ``unavailable`` if no jobs can be taken, ``degraded`` if something else is wrong with all of it."""
        if self.reason is not None:
            return "unavailable"
        return "ready" if self.broker is None and not self.broken_files else "degraded"

    @property
    def reason(self) -> OmniJobsError | None:
        """Return why no jobs can be taken, None if they can."""
        return self.database or self.storage


class ServerReadiness:
    """Checks database, object store, broker and pipelines, once for all who ask. For one event loop; ``close`` it."""

    def __init__(
        self,
        db: Database,
        store: ObjectStore,
        broker: Broker,
        refused: Callable[[], Mapping[str, ErrorView]],
        troubles: Callable[[], Mapping[str, ErrorView | None]],
    ) -> None:
        """``refused``: the pipelines whose files no new process would take. ``troubles``: why jobs are refused."""
        self._db = db
        self._refused_now = refused
        self._troubles_now = troubles
        self._refused: Mapping[str, ErrorView] = {}
        self._troubles: Mapping[str, ErrorView | None] = {}
        self._store = store
        self._written_at: float | None = None
        self._put_at: float | None = None
        self._checks = SharedChecks(
            {
                "database": SharedCheck(self._check_database, DatabaseUnavailable),
                "storage": SharedCheck(self._check_storage, StorageUnavailable),
                "broker": SharedCheck(broker.check, BrokerUnavailable),
                "pipelines": SharedCheck(self._check_pipelines, limit_s=_PIPELINES_LIMIT_S),
            }
        )

    async def troubles(self) -> Troubles:
        """Return what is wrong, as it was a second ago at most."""
        found = await self._checks.outcomes()
        return Troubles(
            found["database"],
            found["broker"],
            found["storage"],
            dict(self._troubles) | dict(self._refused),
            broken_files=bool(self._refused),
        )

    def close(self) -> None:
        """Wait for no check any longer."""
        self._checks.close()

    def _check_database(self) -> None:
        self._db.check()
        began = time.monotonic()
        if self._written_at is None or began >= self._written_at + _WRITE_EVERY_S:
            self._written_at = None
            self._db.check_writes()
            self._written_at = began

    def _check_storage(self) -> None:
        began = time.monotonic()
        if self._put_at is not None and began < self._put_at + _PUT_EVERY_S:
            self._store.check()
            return
        self._put_at = None
        self._store.check_writes()
        self._put_at = began

    def _check_pipelines(self) -> None:
        self._refused, self._troubles = self._refused_now(), self._troubles_now()
