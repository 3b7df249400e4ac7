"""Videos: create one, poll it until it is made, fetch it.

The server keeps a video under its id. If the stage run ends before it is fetched, the video is deleted there, which
stops its making.
"""

import asyncio
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from omni_jobs.errors import ModelError, OmniJobsError, RemoteUnavailable
from omni_jobs.media.formats import format_of
from workers.runners.remote.call import Call
from workers.runners.remote.client import Answer
from workers.runners.remote.document import read_document
from workers.runners.remote.failures import Setback, bad_answer
from workers.runners.remote.images import refuse_successors
from workers.runners.remote.prompt import RemotePrompt
from workers.runners.remote.server_error import ServerError
from workers.runners.remote.speech import receive
from workers.stages.types import WAITING, EncodedOutput, OmniModelRunnerOutput, Progress

_FORMATS = ("mp4", "webm")
_DELETE_S = 5.0
_POLL_HEADER = "openai-poll-after-ms"
_LONGEST_POLL_S = 60.0
_ID = re.compile(r"[A-Za-z0-9_\-][A-Za-z0-9_.\-]{0,199}")  # it stands in a path
_TRANSIENT = (429, 500, 503, 504)


@dataclass(frozen=True, slots=True)
class Video:
    """A video that is being made; ``progress`` is in percent."""

    id: str
    status: str
    progress: int
    error: ServerError


async def videos(prompt: RemotePrompt, call: Call) -> OmniModelRunnerOutput:
    """Return a video, encoded as the server encodes it, of a text and a picture to start from if the job has one."""
    refuse_successors(prompt)
    form = call.body(prompt, prompt=prompt.text, seed=call.seed(prompt))
    files = [("input_reference", file) for file in prompt.files[:1]]
    read = partial(_read, call=call)
    video, poll_s = await call.ask(read, Progress(0, 100, "percent"), "POST", "videos", form=form, files=files)
    kept = False
    try:
        async with asyncio.timeout(call.engine.total_s):
            await _made(video, poll_s, call)
        path = f"videos/{video.id}/content"
        data = await call.ask(partial(receive, call=call), Progress(100, 100, "percent"), "GET", path, kept=True)
        kept = call.engine.keep_videos
    except TimeoutError:
        raise RemoteUnavailable(f"the video is not made after {call.engine.total_s:g} s") from None
    finally:
        if not kept:
            call.clean_up(_delete(video, call))
    found = format_of("video", data)
    if found is None or found.name not in _FORMATS:
        raise bad_answer(f"the video is none of {', '.join(_FORMATS)}")
    return OmniModelRunnerOutput(encoded={"video": EncodedOutput(data, found.name)})


async def _read(answer: Answer, call: Call) -> tuple[Video, float]:
    """Return the video that an answer describes, and the seconds until the next look at it.

    Raises ModelError for an id that is no name, and without a status.
    """
    document = await read_document(await answer.body())
    call.client.check(document)
    name, status = document.text("id"), document.text("status")
    if name is None or not _ID.fullmatch(name):
        raise bad_answer(f"id: {name!r:.60} is no name")
    if status is None:
        raise bad_answer("status: there is none")
    progress = document.peek("progress")
    percent = int(progress) if type(progress) in (int, float) else 0
    video = Video(name, status, percent, ServerError.parse(document.peek("error"), document.long))
    return video, _poll_s(answer.headers.get(_POLL_HEADER), call)


async def _made(video: Video, poll_s: float, call: Call) -> None:
    """Poll a video until it is made. Time in which the server has no room for it is no time of the stage run's.

    Raises ModelError for one that fails, RemoteUnavailable if the server has lost it.
    """
    while video.status in ("queued", "in_progress"):
        progress = Progress(min(max(video.progress, 0), 100), 100, "percent")
        if video.status == "queued":
            progress = Progress(0, None, WAITING)
        call.progress(progress)
        await asyncio.sleep(poll_s)
        video, poll_s = await call.ask(partial(_read, call=call), progress, "GET", f"videos/{video.id}", kept=True)
    if video.status != "completed":
        error = video.error
        if video.status == "failed" and error.status in _TRANSIENT:
            raise RemoteUnavailable(f"the video failed: {call.client.readable(error.message)}")
        raise ModelError(f"the video is {video.status!r:.40}: {call.client.readable(error.message)}".removesuffix(": "))


async def _delete(video: Video, call: Call) -> None:
    """Delete a video as well as can be: what goes wrong here harms nobody's job."""
    with suppress(Setback, OmniJobsError, TimeoutError):
        async with asyncio.timeout(_DELETE_S), call.client.exchange("DELETE", f"videos/{video.id}"):
            pass


def _poll_s(asked_ms: str | None, call: Call) -> float:
    try:
        asked_s = float(asked_ms or "") / 1000
    except ValueError:
        return call.engine.poll_s
    return min(max(asked_s, call.engine.poll_s), _LONGEST_POLL_S) if asked_s == asked_s else call.engine.poll_s
