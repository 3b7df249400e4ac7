"""``ClientStream``: the frame of a stream that tells one client of its jobs; ``JobsStream`` tells several in turn."""

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from anyio.to_thread import run_sync
from sse_starlette import ServerSentEvent

from omni_jobs.errors import OmniJobsError
from omni_jobs.http.large_event import LargeEvent
from omni_jobs.openai.client_names import rename
from omni_jobs.openai.followed_jobs import FollowedJobs
from omni_jobs.openai.job_errors import JobFailure, check_completed
from omni_jobs.openai.named_field import named_shape
from omni_jobs.views import JobView


class ClientStream(ABC):
    """A stream of events for one client. For one event loop.

    has_ended  whether its last event is told
    """

    def __init__(self) -> None:
        self.has_ended = False

    async def events(self) -> AsyncGenerator[ServerSentEvent | LargeEvent, None]:
        """Yield the events. End early, without a last event, if the client has left.

        The first step raises what the read of a job raises. A later error is the last event.
        """
        has_begun = False
        try:
            async with aclosing(self._all()) as events:
                async for event in events:
                    yield event
                    has_begun = True
        except (JobFailure, OmniJobsError) as raised:
            if not has_begun:
                raise
            self.has_ended = True
            error, status = (raised.error, raised.status) if isinstance(raised, JobFailure) else (raised, None)
            yield self._error(error, status)

    @abstractmethod
    def _all(self) -> AsyncGenerator[ServerSentEvent | LargeEvent, None]:
        """Yield the events. Set ``has_ended`` before the last."""

    @abstractmethod
    def _error(self, error: OmniJobsError, status: int | None) -> ServerSentEvent | LargeEvent:
        """Return the event of an error, which has this status; None: its own."""


class JobsStream(ClientStream):
    """A stream that tells each job while it runs, and then what it has made.

    The jobs run side by side. They are told one after the other, because each watches a job, and a request watches one.
    """

    def __init__(self, jobs: FollowedJobs) -> None:
        super().__init__()
        self._jobs = jobs
        self._job_id = jobs.ids[0]  # the one that is told

    async def _all(self) -> AsyncGenerator[ServerSentEvent | LargeEvent, None]:
        for index, job_id in enumerate(self._jobs.ids):
            self._job_id = job_id
            async with aclosing(self._running(index)) as events:
                async for event in events:
                    yield event
            job = await run_sync(self._jobs.see, job_id)
            if self._jobs.has_left and not job.status.is_final:
                return
            check_completed(job)
            async with aclosing(self._completed(index, job)) as events:
                async for event in events:
                    yield event

    @abstractmethod
    def _running(self, index: int) -> AsyncGenerator[ServerSentEvent | LargeEvent, None]:
        """Yield what the job ``_job_id`` tells while it runs, and an event before that."""

    @abstractmethod
    def _completed(self, index: int, job: JobView) -> AsyncGenerator[ServerSentEvent | LargeEvent, None]:
        """Yield what is told of the job once it has completed. Set ``has_ended`` before the last event of all."""

    def _error(self, error: OmniJobsError, status: int | None) -> ServerSentEvent:
        rename(error, self._jobs.name_of)
        return error_event(error, self._job_id, status)


def error_event(error: OmniJobsError, job_id: str, status: int | None = None) -> ServerSentEvent:
    """Return the event of an error of a job, which has this status; None: its own."""
    return event_of({"error": named_shape(error, status, job_id=job_id)})


def event_of(its: Mapping[str, Any]) -> ServerSentEvent:
    """Return an event whose data are these, as JSON."""
    return ServerSentEvent(json.dumps(its))
