"""``ServerReadiness``: whether an API process can take and run jobs, and why not."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from omni_jobs.api.shared_checks import SharedCheck, SharedChecks
from omni_jobs.broker.broker import Broker
from omni_jobs.database.database import Database
from omni_jobs.errors import BrokerUnavailable, DatabaseUnavailable, OmniJobsError, StorageUnavailable
from omni_jobs.http.error_answers import shape_of
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.storage import ObjectStore
from omni_jobs.views import ErrorView, RequestErrorView

_WRITE_EVERY_S = 3.0
_PUT_EVERY_S = 20.0  # a service may charge for each
_PIPELINES_LIMIT_S = 60.0  # the first time, tokenizers are loaded


class Check(BaseModel):
    ok: bool
    error: ErrorView | None = None


class Standing(BaseModel):
    """The state of the server, which is all that a caller without a key learns where callers have keys.

    It is ``degraded``, and still takes and shows jobs, in two cases. Its broker is away: the jobs run once that is
    back. Or a pipeline file was broken after the start: this process goes on, but a new one would not start.
    """

    status: Literal["ready", "degraded", "unavailable"]


class Readiness(Standing):
    """The state of the server, and the checks from which it follows."""

    error: RequestErrorView | None = None  # why it is unavailable
    database: Check
    broker: Check
    storage: Check
    pipelines: dict[str, Check]  # whether it admits jobs; a missing checkpoint concerns its own pipeline alone


@dataclass(eq=False, repr=False)
class ServerReadiness:
    """Checks database, object store, broker and pipelines, once for all who ask. For one event loop; ``close`` it."""

    db: Database
    store: ObjectStore
    broker: Broker
    pipelines: Pipelines
    unavailable_reason: Callable[[Pipeline], ErrorView | None]  # why all jobs of a pipeline are refused, if they are

    def __post_init__(self) -> None:
        self._has_broken_files = False  # a pipeline's file is one with which no process would start
        self._of_pipelines: dict[str, Check] = {}
        self._written_at: float | None = None
        self._put_at: float | None = None
        self._checks = SharedChecks(
            {
                "database": SharedCheck(self._check_database, DatabaseUnavailable),
                "storage": SharedCheck(self._check_storage, StorageUnavailable),
                "broker": SharedCheck(self.broker.check, BrokerUnavailable),
                "pipelines": SharedCheck(self._check_pipelines, limit_s=_PIPELINES_LIMIT_S),
            }
        )

    async def look(self) -> tuple[Readiness, OmniJobsError | None]:
        """Return the state of the server, as it was a second ago at most, and why it takes no jobs; None if it does."""
        found = await self._checks.outcomes()
        reason = found["database"] or found["storage"]
        is_whole = found["broker"] is None and not self._has_broken_files
        readiness = Readiness(
            status="unavailable" if reason is not None else "ready" if is_whole else "degraded",
            error=None if reason is None else RequestErrorView(**shape_of(reason) | {"message": reason.whole_message}),
            database=_check_of(found["database"]),
            broker=_check_of(found["broker"]),
            storage=_check_of(found["storage"]),
            pipelines=self._of_pipelines,
        )
        return readiness, reason

    def close(self) -> None:
        """Wait for no check any longer."""
        self._checks.close()

    def _check_database(self) -> None:
        self.db.check()
        began = time.monotonic()
        if self._written_at is None or began >= self._written_at + _WRITE_EVERY_S:
            self._written_at = None
            self.db.check_writes()
            self._written_at = began

    def _check_storage(self) -> None:
        began = time.monotonic()
        if self._put_at is not None and began < self._put_at + _PUT_EVERY_S:
            self.store.check()
            return
        self._put_at = None
        self.store.check_writes()
        self._put_at = began

    def _check_pipelines(self) -> None:
        """Note why a pipeline's file, as it is now, would be refused by a new process, or else why its jobs are."""
        found: dict[str, Check] = {}
        refusals = {name: self.pipelines.refusal(name) for name in self.pipelines}
        for name, refusal in refusals.items():
            error = self.unavailable_reason(self.pipelines[name])
            if refusal is not None:
                error = ErrorView(code=refusal.code, message=str(refusal), field=refusal.field)
            found[name] = Check(ok=error is None, error=error)
        self._has_broken_files = any(refusals.values())
        self._of_pipelines = found


def _check_of(failure: OmniJobsError | None) -> Check:
    if failure is None:
        return Check(ok=True)
    return Check(ok=False, error=ErrorView(**failure.to_dict() | {"message": failure.whole_message}))
