"""``SharedChecks``: checks whose outcome is shared by all who ask, so that many who ask cost no more than one."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from omni_jobs.errors import OmniJobsError

logger = logging.getLogger(__name__)

_KEPT_S = 1.0
_THREADS = 2


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
        for name, check in self._checks.items():
            is_fresh = check.ended is not None and self._clock() < check.ended + _KEPT_S
            if check.going is None and not is_fresh:
                check.began = self._clock()
                check.going = asyncio.create_task(self._run(name, check))
        for check in self._checks.values():
            left_s = check.began + check.limit_s - self._clock()
            if check.going is not None and left_s > 0:
                await asyncio.wait([check.going], timeout=left_s)
        return {name: self._outcome(check) for name, check in self._checks.items()}

    def close(self) -> None:
        """Wait for no check any longer."""
        for check in self._checks.values():
            if check.going is not None:
                check.going.cancel()

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
