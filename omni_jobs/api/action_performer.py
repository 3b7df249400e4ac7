"""``ActionPerformer``: performs the actions on many jobs, of which any API server takes whatever waits."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from omni_jobs.errors import (
    DatabaseUnavailable,
    Fenced,
    InvalidInput,
    LimitReached,
    MissingScope,
    NotFound,
    OmniJobsError,
)
from omni_jobs.http.error_answers import shape_of
from omni_jobs.http.tenant_threads import TenantThreads
from omni_jobs.intake.intake import Intake
from omni_jobs.jobs import ACTION_LEASE_S, ActionStep, ActionTurn, Jobs, after_step
from omni_jobs.states import ActionState
from omni_jobs.tenants.caller import Caller, Scope
from omni_jobs.tenants.callers import Callers
from omni_jobs.views import SkippedJobs

logger = logging.getLogger(__name__)

T = TypeVar("T")

GROUP: Final = 200
"""The jobs of a transaction, while which SQLite's other writers wait."""
_RETRIED: Final = 20  # jobs between two queries for more, of a retry
_COUNTED: Final = 1_000  # jobs of a query that counts
_STEP_S: Final = 1.0  # of a step that counts or retries, but for its last query or job
_TURN_S: Final = 5.0  # then another action has its turn
_LONGEST_PAUSE_S: Final = 5.0  # between two steps
_RENEWED_S: Final = ACTION_LEASE_S / 3  # between two renewals of the lease
_HANGS_S: Final = 120.0  # of a step and the pause after it; PostgreSQL ends a statement after 60 s
_AT_ONCE: Final = 2  # actions of one server, so that requests find threads and the database free
_LOOK_S: Final = 2.0  # between two looks for actions of other servers
_WAIT_S: Final = 5.0  # for what a retry lacks, such as room in the backlog
_MOST_WAITING: Final = 100  # tenants whose jobs wait for room while those of others are retried


class ActionPerformer:
    """Takes actions one after the other, each for a few seconds, and does some steps of it. For one event loop.

    Nothing of an action stands in this process, so another one goes on with it when this one dies. While a step goes
    on, however slowly, the action's lease is renewed. A step that takes longer than _HANGS_S hangs: its action goes to
    whoever takes it next, and what it ends with is fenced.
    """

    def __init__(self, jobs: Jobs, intake: Intake, callers: Callers, threads: TenantThreads) -> None:
        self._jobs = jobs
        self._intake = intake
        self._callers = callers
        self._threads = threads
        self._renewals = CapacityLimiter(_AT_ONCE)  # threads of their own, because leases do not wait for requests
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._woken = asyncio.Event()
        self._is_closing = False
        self._looks: asyncio.Task[None] | None = None
        self._turns: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to look for actions."""
        self._looks = asyncio.create_task(self._look())

    def wake(self) -> None:
        """Look for actions now, because one has begun."""
        self._woken.set()

    async def close(self) -> None:
        """End the steps that are being taken, and let the actions go to other servers."""
        self._is_closing = True
        self.wake()
        if self._looks is not None:
            await self._looks
        await asyncio.gather(*self._turns)

    async def _look(self) -> None:
        while True:
            await self._places.acquire()
            self._woken.clear()
            if self._is_closing:
                return
            turn = await self._taken()
            if turn is None:
                self._places.release()
                try:
                    async with asyncio.timeout(_LOOK_S * random.uniform(0.8, 1.2)):  # noqa: S311
                        await self._woken.wait()
                except TimeoutError:
                    continue
            else:
                performed = asyncio.create_task(self._perform(turn))
                self._turns.add(performed)
                performed.add_done_callback(self._end_turn)

    async def _taken(self) -> ActionTurn | None:
        """Return an action to perform; None: there is none now, or the database does not answer."""
        try:
            return await run_sync(self._jobs.take_action)
        except DatabaseUnavailable:
            return None  # the server's readiness says so
        except Exception:  # a bug must not end the looks, because the next one may go well
            logger.exception("looking for actions")
            return None

    def _end_turn(self, performed: asyncio.Task[None]) -> None:
        self._turns.discard(performed)
        self._places.release()
        self.wake()

    async def _perform(self, turn: ActionTurn) -> None:
        """Take steps of an action for some seconds, and let it go."""
        until = time.monotonic() + _TURN_S
        try:
            async with self._renewed(turn):
                caller = await self._callers.of_actor(turn.actor, turn.tenant)
            while not turn.state.is_final and not self._is_closing and time.monotonic() < until:
                async with self._renewed(turn):
                    began = time.monotonic()
                    turn = await self._step(turn, caller)
                    took = time.monotonic() - began
                    await asyncio.sleep(min(took, _LONGEST_PAUSE_S))  # other writers have as long
            await self._on_thread(turn, lambda: self._jobs.let_go_action(turn))
        except Fenced:
            return
        except OmniJobsError as error:
            await self._end(turn, error)
        except Exception:  # a bug must not be met anew every few seconds
            logger.exception("action %s", turn.id)
            await self._end(turn, OmniJobsError())

    @asynccontextmanager
    async def _renewed(self, turn: ActionTurn) -> AsyncIterator[None]:
        """Context manager: renew the lease of an action within the block, for _HANGS_S at most."""
        renewals = asyncio.create_task(self._renew(turn))
        try:
            yield
        finally:
            renewals.cancel()
            await asyncio.wait([renewals])

    async def _renew(self, turn: ActionTurn) -> None:
        until = time.monotonic() + _HANGS_S
        while time.monotonic() < until:
            await asyncio.sleep(_RENEWED_S)
            try:
                await run_sync(self._jobs.renew_action, turn, limiter=self._renewals)
            except DatabaseUnavailable:
                continue  # the step meets it, too
            except Exception:  # a bug must not end the step, which is fenced if it loses the lease
                logger.exception("renewing the lease of action %s", turn.id)

    async def _end(self, turn: ActionTurn, error: OmniJobsError) -> None:
        """Let an action wait for what it lacks, or fail for good. It raises nothing: the lease ends in any case."""
        # Tenants whose jobs wait take turns, so that each is tried once in that time.
        wait_s = _WAIT_S / (1 + len(turn.waiting))
        try:
            if error.retryable:
                await self._on_thread(turn, lambda: self._jobs.let_go_action(turn, error, wait_s))
            else:
                await self._on_thread(turn, lambda: self._jobs.fail_action(turn, error))
        except DatabaseUnavailable:
            logger.warning("action %s waits for the database: %s", turn.id, error)
        except Exception:  # whoever takes the action next meets the error anew
            logger.exception("ending a turn of action %s, because of: %s", turn.id, error)

    async def _step(self, turn: ActionTurn, caller: Caller) -> ActionTurn:
        if turn.state is ActionState.COUNTING:
            return await self._on_thread(turn, lambda: self._count(turn))
        if turn.verb == "retry":
            return await self._retry(turn, caller)
        return await self._on_thread(turn, lambda: self._change(turn))

    def _count(self, turn: ActionTurn) -> ActionTurn:
        counted, cursor, until = 0, turn.cursor, time.monotonic() + _STEP_S
        while True:
            found = self._jobs.matching(turn.wanted, _COUNTED, cursor)
            counted, cursor = counted + len(found.ids), found.next_cursor
            if cursor is None or time.monotonic() >= until:
                return self._jobs.note_step(turn, ActionStep.to_end_of(found)._replace(counted=counted))

    def _change(self, turn: ActionTurn) -> ActionTurn:
        return self._jobs.change_group(turn, self._jobs.matching(turn.next_jobs, GROUP, turn.cursor))

    async def _retry(self, turn: ActionTurn, caller: Caller) -> ActionTurn:
        """Retry some jobs, each in a transaction that notes it, with those that were skipped since the last one."""
        wanted, cursor = turn.next_jobs, turn.cursor
        found = await self._on_thread(turn, lambda: self._jobs.matching(wanted, _RETRIED, cursor))
        may_be_high, skipped, until = caller.may(Scope.PRIORITY), list[SkippedJobs](), time.monotonic() + _STEP_S
        for job_id in found.ids:
            step = ActionStep(job_id, changed=1, skipped=tuple(skipped))
            try:
                await self._intake.retry(
                    job_id,
                    None,
                    turn.tenant,
                    caller.limits,
                    may_be_high=may_be_high,
                    by=turn.actor,
                    states=turn.wanted.states,
                    as_step=(turn, step),
                )
            except (InvalidInput, MissingScope) as error:
                message = shape_of(error)["message"]
                skipped.append(SkippedJobs(code=error.code, count=1, job_id=job_id, message=message))
            except LimitReached as error:
                return await self._lacks_room(turn, ActionStep(cursor, skipped=tuple(skipped)), job_id, error)
            else:
                turn = after_step(turn, step)
                skipped.clear()
            cursor = job_id
            if time.monotonic() >= until:
                return await self._note(turn, ActionStep(cursor, skipped=tuple(skipped))) if skipped else turn
        return await self._note(turn, ActionStep.to_end_of(found)._replace(skipped=tuple(skipped)))

    async def _lacks_room(self, turn: ActionTurn, step: ActionStep, job_id: str, error: LimitReached) -> ActionTurn:
        """Note a step that ends before a job for which there is no room, and go on with the jobs of other tenants.

        Raises the error if the action is to wait, because there are no others, or too many tenants wait already.
        """
        try:
            job = await self._on_thread(turn, lambda: self._jobs.get(job_id))
        except NotFound:  # deleted since; the next look does not find it
            raise error from None
        is_walk_of_all = turn.wanted.tenant is None
        if not is_walk_of_all or len(turn.waiting) < _MOST_WAITING:
            step = step._replace(waits=job.tenant)
        turn = await self._note(turn, step)
        if is_walk_of_all and step.waits is not None:
            return turn
        raise error

    async def _note(self, turn: ActionTurn, step: ActionStep) -> ActionTurn:
        return await self._on_thread(turn, lambda: self._jobs.note_step(turn, step))

    async def _on_thread(self, turn: ActionTurn, function: Callable[[], T]) -> T:
        return await self._threads.run(turn.tenant, function, goes_on=True)
