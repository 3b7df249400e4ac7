"""Whether an API process can take and run jobs, and why not; many who ask cost no more checks than one."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from pydantic import BaseModel

from omni_jobs.broker.broker import Broker
from omni_jobs.database.database import Database
from omni_jobs.errors import BrokerUnavailable, DatabaseUnavailable, OmniJobsError, StorageUnavailable
from omni_jobs.http.error_answers import shape_of
from omni_jobs.metrics.beat_file import BeatFile
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.storage import ObjectStore
from omni_jobs.views import ErrorView, RequestErrorView

logger = logging.getLogger(__name__)

_KEPT_S = 1.0  # each outcome
_THREADS = 2
_WRITE_EVERY_S = 3.0
_BEAT_S = 5.0
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

    def broker_is_away(self) -> bool:
        """Return whether the broker's last check failed. This waits for none, and begins one if the last is old."""
        return self._checks.last("broker") is not None

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
        refusals = {name: self.pipelines.refusal(pipeline) for name, pipeline in self.pipelines.items()}
        for name, refusal in refusals.items():
            error = self.unavailable_reason(self.pipelines[name])
            if refusal is not None:
                error = ErrorView(code=refusal.code, message=str(refusal), field=refusal.field)
            found[name] = Check(ok=error is None, error=error)
        self._has_broken_files = any(refusals.values())
        self._of_pipelines = found


async def beat_while_ready(beat_file: BeatFile, readiness: ServerReadiness) -> None:
    """Beat for a health check while the server takes jobs, until cancelled. Without a file this asks nothing."""
    while beat_file.is_kept:
        _, reason = await readiness.look()
        if reason is None:
            beat_file.beat()
        await asyncio.sleep(_BEAT_S)


def _check_of(failure: OmniJobsError | None) -> Check:
    if failure is None:
        return Check(ok=True)
    return Check(ok=False, error=ErrorView(**failure.to_dict() | {"message": failure.whole_message}))


@dataclass(slots=True)
class SharedCheck:
    """A check, and what became of it last.

    run      raises the OmniJobsError that it finds, on a thread
    late     the kind of error that it is to have no outcome after ``limit_s`` seconds
    """

    run: Callable[[], object]
    late: type[OmniJobsError] = OmniJobsError
    limit_s: float = 5.0
    outcome: OmniJobsError | None = None
    began: float = 0.0
    ended: float | None = None  # None: it never did
    going: asyncio.Task[None] | None = field(default=None, repr=False)


class SharedChecks:
    """Runs checks on two threads at most, while somebody asks. For one event loop; ``close`` them.

    An outcome is kept for a second after the check's end. A check that hangs holds its thread, and is begun again only
    once it has ended; meanwhile it counts as failed.
    """

    def __init__(self, checks: Mapping[str, SharedCheck], clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns seconds."""
        self._checks = checks
        self._clock = clock
        self._threads = CapacityLimiter(_THREADS)

    async def outcomes(self) -> dict[str, OmniJobsError | None]:
        """Return the error of each check, None if it found none. It takes the longest ``limit_s`` at most."""
        for name in self._checks:
            self._begin_if_old(name)
        for check in self._checks.values():
            left_s = check.began + check.limit_s - self._clock()
            if check.going is not None and left_s > 0:
                await asyncio.wait([check.going], timeout=left_s)
        return {name: self._outcome(check) for name, check in self._checks.items()}

    def last(self, name: str) -> OmniJobsError | None:
        """Return the outcome of a check as it is known now, and begin the check anew if that is old."""
        self._begin_if_old(name)
        return self._outcome(self._checks[name])

    def close(self) -> None:
        """Wait for no check any longer."""
        for check in self._checks.values():
            if check.going is not None:
                check.going.cancel()

    def _begin_if_old(self, name: str) -> None:
        check = self._checks[name]
        is_fresh = check.ended is not None and self._clock() < check.ended + _KEPT_S
        if check.going is None and not is_fresh:
            check.began = self._clock()
            check.going = asyncio.create_task(self._run(name, check))

    def _outcome(self, check: SharedCheck) -> OmniJobsError | None:
        if check.going is None or self._clock() < check.began + check.limit_s:
            return check.outcome
        return check.late(f"no answer within {check.limit_s:g} s")

    async def _run(self, name: str, check: SharedCheck) -> None:
        try:
            check.outcome = await run_sync(_failure_of, name, check.run, abandon_on_cancel=True, limiter=self._threads)
            check.ended = self._clock()
        finally:
            check.going = None


def _failure_of(name: str, run: Callable[[], object]) -> OmniJobsError | None:
    try:
        run()
    except OmniJobsError as error:
        return error
    except Exception:
        logger.exception("checking %s", name)  # never a 500, because who asks wants to know why the server is not ready
        return OmniJobsError("an unforeseen error; the server's log has it")
    return None
