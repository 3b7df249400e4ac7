"""``ImageStream``: pictures as they are made, each after a few of its previews.

a comment → partial_image … → completed, for each picture in turn
"""

import json
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from sse_starlette import ServerSentEvent

from omni_jobs.http.large_event import LargeEvent
from omni_jobs.openai.followed_jobs import FollowedJobs
from omni_jobs.openai.images.answer import picture_usage
from omni_jobs.openai.images.request import WantedPictures
from omni_jobs.openai.stream import JobsStream
from omni_jobs.views import JobView, ProgressView

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


class ImageStream(JobsStream):
    """The events of pictures that are asked for, one of each job. An error within a picture breaks the stream off."""

    def __init__(
        self,
        jobs: FollowedJobs,
        read: Callable[[JobView], Awaitable[tuple[str, AsyncGenerator[bytes, None]]]],
        wanted: WantedPictures,
    ) -> None:
        """``read`` gives a job's picture: its format's name, and its base64 in pieces, read as they are taken."""
        super().__init__(jobs)
        self._read = read
        self._wanted = wanted

    async def _running(self, index: int) -> AsyncGenerator[ServerSentEvent | LargeEvent, None]:
        """Yield a comment, with which the answer begins, and previews until the job has ended."""
        chosen = ChosenPreviews(self._wanted.partial_images)
        changes = self._jobs.changes(self._job_id)
        async with aclosing(changes):
            glance = await anext(changes, None)
            yield ServerSentEvent(comment=f"job {self._job_id}")
            while glance is not None and not glance.state.is_final:
                for progress in [run.progress for run in glance.runs]:
                    if progress is not None and chosen.takes(progress):
                        yield self._preview(progress.picture or "", chosen.told - 1)
                glance = await anext(changes, None)

    async def _completed(self, index: int, job: JobView) -> AsyncGenerator[LargeEvent, None]:
        format, base64 = await self._read(job)
        usage = picture_usage([job], has_sources=self._wanted.has_sources)
        more = {} if usage is None else {"usage": usage.model_dump(exclude_none=True)}
        self.has_ended = index + 1 == len(self._jobs.ids)
        yield self._event("completed", base64, {"output_format": format, **more})

    def _preview(self, url: str, number: int) -> LargeEvent:
        found = _PREVIEW.match(url)
        format, data = (found[1], url[found.end() :]) if found is not None else ("jpeg", "")
        return self._event("partial_image", _whole(data), {"output_format": format, "partial_image_index": number})

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
