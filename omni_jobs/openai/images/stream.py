"""``ImageStream``: pictures as they are made, each after a few of its previews.

    a comment → partial_image … → completed, for each picture in turn

All jobs run side by side. They are told one after the other, because each watches a job, and a request watches one.
"""

import json
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from sse_starlette import ServerSentEvent

from omni_jobs.errors import OmniJobsError
from omni_jobs.http.large_event import LargeEvent
from omni_jobs.openai.client_names import in_client_names
from omni_jobs.openai.images.answer import picture_usage
from omni_jobs.openai.images.request import WantedPictures
from omni_jobs.openai.job_errors import JobFailure
from omni_jobs.openai.named_field import named_shape
from omni_jobs.views import JobView, ProgressView
from omni_jobs.watch.watch import Watch, WatchPlace

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


@dataclass(frozen=True, slots=True)
class StreamedPicture:
    """The picture of a completed job: the name of its format, and its base64 in pieces, read as they are taken."""

    job: JobView
    format: str
    base64: AsyncGenerator[bytes, None]


class ImageStream:
    """The events of pictures that are asked for. For one event loop."""

    def __init__(
        self,
        watch: Watch,
        read: Callable[[str], Awaitable[StreamedPicture]],
        leave: Callable[[], None],
        place: WatchPlace,
        wanted: WantedPictures,
    ) -> None:
        """``read`` gives the picture of a job that has ended. It raises JobFailure unless the job has completed.

        ``leave`` is called if the client leaves before the end. ``place`` is the client's among those that watch.
        """
        self._watch = watch
        self._read = read
        self._leave = leave
        self._place = place
        self._wanted = wanted
        self._has_ended = False  # its last event is told

    async def events(self, job_ids: Sequence[str]) -> AsyncGenerator[ServerSentEvent | LargeEvent, None]:
        """Yield the events of the pictures that these jobs make.

        The first is a comment, and an error is the last; one within a picture breaks the stream off. End early, without
        a last event, if the client has left.
        """
        try:
            async with aclosing(self._all(job_ids)) as events:
                async for event in events:
                    yield event
        finally:  # it may be cancelled or closed at any event
            if not self._has_ended:
                self._leave()

    async def _all(self, job_ids: Sequence[str]) -> AsyncGenerator[ServerSentEvent | LargeEvent, None]:
        job_id = job_ids[0]
        try:
            with in_client_names(self._wanted.names):
                for job_id in job_ids:
                    async with aclosing(self._previews(job_id)) as previews:
                        async for event in previews:
                            yield event
                    if self._place.has_left:
                        return
                    completed = self._completed(await self._read(job_id))
                    self._has_ended = job_id == job_ids[-1]
                    yield completed
        except JobFailure as failure:
            self._has_ended = True
            yield _error(failure.error, failure.job_id, failure.status)
        except OmniJobsError as error:
            self._has_ended = True
            yield _error(error, job_id)

    async def _previews(self, job_id: str) -> AsyncGenerator[ServerSentEvent | LargeEvent, None]:
        """Yield a comment, with which the answer begins, and previews until the job has ended."""
        chosen = ChosenPreviews(self._wanted.partial_images)
        changes = self._watch.changes(job_id, self._place, with_runs=True)
        async with aclosing(changes):
            glance = await anext(changes, None)
            yield ServerSentEvent(comment=f"job {job_id}")
            while glance is not None and not glance.state.is_final:
                for progress in [run.progress for run in glance.runs]:
                    if progress is not None and chosen.takes(progress):
                        yield self._preview(progress.picture or "", chosen.told - 1)
                glance = await anext(changes, None)

    def _preview(self, url: str, number: int) -> LargeEvent:
        found = _PREVIEW.match(url)
        format, data = (found[1], url[found.end() :]) if found is not None else ("jpeg", "")
        return self._event("partial_image", _whole(data), {"output_format": format, "partial_image_index": number})

    def _completed(self, picture: StreamedPicture) -> LargeEvent:
        usage = picture_usage([picture.job], has_sources=self._wanted.has_sources)
        more = {} if usage is None else {"usage": usage.model_dump(exclude_none=True)}
        return self._event("completed", picture.base64, {"output_format": picture.format, **more})

    def _event(self, name: str, base64: AsyncGenerator[bytes, None], more: dict[str, Any]) -> LargeEvent:
        """Return an event with a picture."""
        kind = f"{self._wanted.kind}.{name}"
        told = {
            "type": kind,
            "created_at": int(time.time()),
            "size": self._wanted.size,
            "quality": "auto",
            "background": "auto",
            **more,
        }
        return LargeEvent(kind, _with_picture(json.dumps(told), base64))


async def _whole(base64: str) -> AsyncGenerator[bytes, None]:
    yield base64.encode()


async def _with_picture(told: str, base64: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield the JSON object ``told`` with the base64 of a picture as its last field."""
    yield f'{told[:-1]}, "b64_json": "'.encode()
    async with aclosing(base64):
        async for piece in base64:
            yield piece
    yield b'"}'


def _error(error: OmniJobsError, job_id: str, status: int | None = None) -> ServerSentEvent:
    return ServerSentEvent(json.dumps({"error": named_shape(error, status, job_id=job_id)}))
