"""``MediaFetches``: fetches the media that requests name by URL, before decoders see any of them.

A fetch takes a place of its tenant's and one of the server's, and no thread, so that other requests go on meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter

from omni_jobs.errors import (
    InvalidRequest,
    MediaHostUnavailable,
    MediaUnavailable,
    OmniJobsError,
    RequestTooLarge,
    ServerBusy,
)
from omni_jobs.fetch.failures import Blame, FetchFailed
from omni_jobs.fetch.guard import Guard
from omni_jobs.fetch.outgoing import FetchBounds, Outgoing
from omni_jobs.intake.kept_errors import without_frames
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.requests import Submission, links_of
from omni_jobs.settings import Settings

T = TypeVar("T")

_ERRORS: Final[Mapping[Blame, type[OmniJobsError]]] = {
    Blame.LINK: InvalidRequest,
    Blame.ANSWER: MediaUnavailable,
    Blame.HOST: MediaHostUnavailable,
}
_MOST_WAITING: Final = 256  # fetches of one tenant; one more is refused


@dataclass(slots=True)
class _Rest:
    """How many bytes the media of one submit may still bring."""

    bytes: int


class MediaFetches:
    """Fetches media for the submissions of one API process. For one event loop; ``close`` it."""

    def __init__(self, settings: Settings, pipelines: Pipelines) -> None:
        """Prepare to fetch as the settings allow it. Raises ConfigError if they contradict each other."""
        self._settings = settings
        self._pipelines = pipelines
        guard = Guard.of(settings)
        self._outgoing = None if guard is None else Outgoing(guard)
        self._places = CapacityLimiter(settings.max_fetches)
        self._of_tenants: WeakValueDictionary[str, CapacityLimiter] = WeakValueDictionary()
        self.held_bytes = 0  # of media whose submits are not written yet

    @property
    def is_on(self) -> bool:
        """Whether anything is fetched at all."""
        return self._outgoing is not None

    @property
    def waiting(self) -> int:
        """The number of fetches that wait for a place of the server's."""
        return self._places.statistics().tasks_waiting

    def close(self) -> None:
        """Let go of the connection's threads."""
        if self._outgoing is not None:
            self._outgoing.close()

    async def fetch_all(self, submissions: Sequence[Submission], until: ExitStack) -> list[Submission | OmniJobsError]:
        """Return the submissions with the media that they name by URL, or the error of a refusal for each.

        All are fetched at once, as far as there are places. The media count as held until ``until`` closes: close it
        once they are stored. Where nothing is fetched, the submissions come back as they are.
        """
        ready: list[Submission | OmniJobsError] = list(submissions)
        if self._outgoing is None:
            return ready
        linked = [number for number, each in enumerate(submissions) if each.request.links]
        if not linked:
            return ready
        fetched = await _together([self._fetched(self._outgoing, submissions[number], until) for number in linked])
        for number, each in zip(linked, fetched, strict=True):
            ready[number] = each
        return ready

    async def _fetched(
        self, outgoing: Outgoing, submission: Submission, until: ExitStack
    ) -> Submission | OmniJobsError:
        request, tenant = submission.request, submission.caller.tenant
        pipeline = self._pipelines.find(request.model)
        if pipeline is None:  # admission says so
            return submission
        rest = _Rest(self._settings.max_fetched_bytes)
        try:
            links = dict(links_of(request.messages or (), pipeline, self._settings))
            calls = [self._fetch(outgoing, tenant, field, url, rest, until) for field, url in links.items()]
            media = await _together(calls)
        except OmniJobsError as error:
            return without_frames(error)
        return replace(submission, fetched=dict(zip(links, media, strict=True)))

    async def _fetch(
        self, outgoing: Outgoing, tenant: str, field: str, url: str, rest: _Rest, until: ExitStack
    ) -> bytearray:
        """Return the medium of one URL. Raises the error of its refusal, which names the field and not the URL."""
        held = 0

        def hold(more: int) -> None:
            nonlocal held
            if more > rest.bytes:
                raise _too_large(self._settings.max_fetched_bytes, field)
            if self.held_bytes + more > self._settings.max_held_body_bytes:
                raise ServerBusy(f"media of {self._settings.max_held_body_bytes} bytes are held already", field=field)
            rest.bytes -= more
            self.held_bytes += more
            held += more

        def let_go() -> None:
            self.held_bytes -= held

        until.callback(let_go)
        bounds = FetchBounds(self._settings.max_fetched_bytes, self._settings.fetch_limit_s)
        try:
            async with self._place(tenant, field):
                return await outgoing.fetch(url, bounds, hold)
        except FetchFailed as failed:
            if failed.blame is Blame.SIZE:
                raise _too_large(self._settings.max_fetched_bytes, field) from None
            raise _ERRORS[failed.blame](failed.reason, field=field) from None

    @asynccontextmanager
    async def _place(self, tenant: str, field: str) -> AsyncIterator[None]:
        """Take a place of the tenant's, then one of the server's. Raises ServerBusy where that takes too long."""
        of_tenant = self._of_tenants.get(tenant)
        if of_tenant is None:
            of_tenant = self._of_tenants[tenant] = CapacityLimiter(self._settings.max_fetches_per_tenant)
        if of_tenant.statistics().tasks_waiting >= _MOST_WAITING:
            raise ServerBusy(f"{_MOST_WAITING} media wait to be fetched already", field=field)
        async with AsyncExitStack() as places:
            try:
                async with asyncio.timeout(self._settings.fetch_limit_s):
                    await places.enter_async_context(of_tenant)
                    await places.enter_async_context(self._places)
            except TimeoutError:
                raise ServerBusy("too many media are being fetched", field=field) from None
            yield


def _too_large(most: int, field: str) -> RequestTooLarge:
    return RequestTooLarge(f"media named by URLs may have {most} bytes altogether (max_fetched_bytes)", field=field)


async def _together(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of calls that run at once. The first error cancels the others, and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
