"""``ImageStream``: pictures as they are made, each after a few of its previews.

    a comment → partial_image … → completed, for each picture in turn

All jobs run side by side. They are told one after the other, because each watches a job, and a request watches one.
"""

import json
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from sse_starlette import ServerSentEvent

from omni_jobs.errors import OmniJobsError
from omni_jobs.http.error_answers import shape_of
from omni_jobs.http.places import Connection
from omni_jobs.openai.client_names import in_client_names
from omni_jobs.openai.images.answer import as_base64, picture_usage
from omni_jobs.openai.images.request import WantedPictures
from omni_jobs.openai.job_errors import JobFailure, check_completed
from omni_jobs.views import JobView, ProgressView
from omni_jobs.watch.watch import Watch

_PREVIEW = re.compile(r"data:image/([a-z]+);base64,")


class ChosenPreviews:
    """Chooses which previews of a picture are told: ``most`` at most, spread evenly over its steps.

    The first is told once its part of the steps is done, a quarter for three, whether the previews before it were seen
    or not; where steps are quicker than looks, fewer are told.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._newest: str | None = None
        self.told = 0

    def takes(self, progress: ProgressView) -> bool:
        """Return whether the progress has a preview that is to be told, which counts as told then."""
        if progress.picture is None or progress.picture == self._newest or self.told >= self._most:
            return False
        is_due = progress.total is None or progress.done * (self._most + 1) >= (self.told + 1) * progress.total
        if is_due:
            self._newest = progress.picture
            self.told += 1
        return is_due


class ImageStream:
    """The events of pictures that are asked for. For one event loop."""

    def __init__(
        self,
        watch: Watch,
        see: Callable[[str], JobView],
        read: Callable[[JobView], tuple[Iterable[bytes], str]],
        run: Callable[[Callable[[], ServerSentEvent]], Awaitable[ServerSentEvent]],
        leave: Callable[[], None],
        tenant: str | None,
        wanted: WantedPictures,
    ) -> None:
        """``see`` reads a job as the client may see it, and ``read`` its picture: bytes in pieces, and their format.
        ``run`` calls both on a thread of those that read artifacts.

        ``leave`` is called if the client leaves before the end. ``tenant`` is whom the client ``sees``.
        """
        self._watch = watch
        self._see = see
        self._read = read
        self._run = run
        self._leave = leave
        self._tenant = tenant
        self._wanted = wanted
        self._has_ended = False  # its last event is told, or an error in place of its first

    async def events(
        self, job_ids: Sequence[str], connection: Connection | None
    ) -> AsyncGenerator[ServerSentEvent, None]:
        """Yield the events of the pictures that these jobs make.

        The first step raises ServerBusy if too many watch, and what the read of a job raises. A later error is the last
        event. End early, without a last event, if the client has left.
        """
        try:
            async with aclosing(self._all(job_ids, connection)) as events:
                async for event in events:
                    yield event
        finally:  # it may be cancelled or closed at any event
            if not self._has_ended:
                self._leave()

    async def _all(
        self, job_ids: Sequence[str], connection: Connection | None
    ) -> AsyncGenerator[ServerSentEvent, None]:
        job_id = job_ids[0]
        has_begun = False
        try:
            with in_client_names(self._wanted.names):
                for job_id in job_ids:
                    async with aclosing(self._previews(job_id, connection)) as previews:
                        async for event in previews:
                            yield event
                            has_begun = True
                    if connection is not None and connection.has_left:
                        return
                    event = await self._run(partial(self._completed, job_id))
                    self._has_ended = job_id == job_ids[-1]
                    yield event
        except JobFailure as failure:
            self._has_ended = True
            yield _error(failure.error, failure.job_id, failure.status)
        except OmniJobsError as error:
            self._has_ended = True
            if not has_begun:
                raise
            yield _error(error, job_id)

    async def _previews(self, job_id: str, connection: Connection | None) -> AsyncGenerator[ServerSentEvent, None]:
        """Yield a comment, with which the answer begins, and previews until the job has ended."""
        chosen = ChosenPreviews(self._wanted.partial_images)
        changes = self._watch.changes(job_id, self._tenant, connection, with_runs=True)
        async with aclosing(changes):
            glance = await anext(changes, None)
            yield ServerSentEvent(comment=f"job {job_id}")
            while glance is not None and not glance.state.is_final:
                for progress in [run.progress for run in glance.runs]:
                    if progress is not None and chosen.takes(progress):
                        yield self._preview(progress.picture or "", chosen.told - 1)
                glance = await anext(changes, None)

    def _preview(self, url: str, number: int) -> ServerSentEvent:
        found = _PREVIEW.match(url)
        format, data = (found[1], url[found.end() :]) if found is not None else ("jpeg", "")
        return self._event("partial_image", [data.encode()], {"output_format": format, "partial_image_index": number})

    def _completed(self, job_id: str) -> ServerSentEvent:
        """Return the event of a job's picture. Raises JobFailure, and what the reads raise. Call this on a thread."""
        job = self._see(job_id)
        check_completed(job)
        pieces, format = self._read(job)
        usage = picture_usage([job], has_sources=self._wanted.has_sources)
        more = {} if usage is None else {"usage": usage.model_dump(exclude_none=True)}
        return self._event("completed", as_base64(pieces), {"output_format": format, **more})

    def _event(self, name: str, data: Iterable[bytes], more: dict[str, Any]) -> ServerSentEvent:
        """Return an event with a picture. ``data``: its base64, in pieces."""
        kind = f"{self._wanted.kind}.{name}"
        told = {
            "type": kind,
            "created_at": int(time.time()),
            "size": self._wanted.size,
            "quality": "auto",
            "background": "auto",
            **more,
        }
        text = json.dumps(told)[:-1]
        return _LargeEvent(kind, [f'{text}, "b64_json": "'.encode(), *data, b'"}'])


class _LargeEvent(ServerSentEvent):
    """An event whose data, one line, are bytes already: the library would go through them for the ends of lines."""

    def __init__(self, event: str, data: Iterable[bytes]) -> None:
        super().__init__()
        self._encoded = b"".join([f"event: {event}\ndata: ".encode(), *data, b"\n\n"])

    def encode(self) -> bytes:
        return self._encoded


def _error(error: OmniJobsError, job_id: str, status: int | None = None) -> ServerSentEvent:
    return ServerSentEvent(json.dumps({"error": shape_of(error, status, job_id=job_id)}))
