"""``ChatStream``: a chat completion in chunks, as its text grows.

    role → content … → tool calls, logprobs, sound → finish_reason;  usage;  [DONE]

All choices run side by side. They are told one after the other, because each watches a job, and a request watches one.
A chunk cannot be taken back. So where an attempt is lost, the next one is followed in silence as long as it writes what
was told; if it writes something else, the stream ends with the error ``text_changed``. The job goes on in any case.
"""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from anyio.to_thread import run_sync
from sse_starlette import ServerSentEvent

from omni_jobs.errors import OmniJobsError
from omni_jobs.jobs import Jobs
from omni_jobs.openai.chat.answer import (
    ChatAudio,
    finish_reason_of,
    head_of,
    logprobs_of,
    text_of,
    tool_calls_of,
    usage_of,
)
from omni_jobs.openai.job_errors import JobFailure, check_completed
from omni_jobs.openai.named_field import named_shape
from omni_jobs.openai.told_text import MOST_CHARS, ToldText, grown_text, parts_of
from omni_jobs.views import JobView
from omni_jobs.watch.watch import Watch, WatchPlace

_SOUND_CHARS: Final = 256 << 10  # of one chunk: a multiple of 4, so that each is base64 by itself


@dataclass(frozen=True, slots=True)
class StreamedSound:
    """The sound of a completed job without its ``data``, and the base64 of these in pieces, read as they are taken."""

    sound: ChatAudio
    base64: AsyncGenerator[bytes, None]


class ChatStream:
    """The chunks of one chat completion for one client. For one event loop."""

    def __init__(
        self,
        jobs: Jobs,
        watch: Watch,
        see: Callable[[str], JobView],
        sound: Callable[[JobView], Awaitable[StreamedSound | None]],
        leave: Callable[[], None],
        place: WatchPlace,
        *,
        stage: str,
        include_usage: bool,
    ) -> None:
        """``see`` reads a job, on a thread, and ``sound`` what a completed one has made of sound.

        ``leave`` is called where the client leaves before the end. ``stage`` makes the text. ``place`` is the client's
        among those that watch.
        """
        self._jobs = jobs
        self._watch = watch
        self._see = see
        self._sound = sound
        self._leave = leave
        self._place = place
        self._stage = stage
        self._include_usage = include_usage
        self._head: dict[str, Any] = {}
        self._tells_text = True  # the stage may run for the sound's sake alone
        self._has_ended = False  # its last event is told, or an error in place of its first

    async def chunks(self, job_ids: Sequence[str]) -> AsyncGenerator[ServerSentEvent, None]:
        """Yield the chunks of the completion that these jobs make, a choice each.

        The first step raises what the read of a job raises. A later error is the last event. End early, without a last
        event, if the client has left.
        """
        try:
            async with aclosing(self._all(job_ids)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:  # it may be cancelled or closed at any chunk
            if not self._has_ended:
                self._leave()

    def ping(self) -> str:
        """Return the data of a chunk that tells nothing, for readers that know chunks alone, and no comments.

        Call it after the first chunk.
        """
        return str(self._chunk(0, {}).data)

    async def _all(self, job_ids: Sequence[str]) -> AsyncGenerator[ServerSentEvent, None]:
        ended: list[JobView] = []
        job_id = job_ids[0]
        has_begun = False
        try:
            job = await run_sync(self._see, job_id)
            self._head = head_of(job) | {"object": "chat.completion.chunk"}
            self._tells_text = "text" in job.modalities
            for index, job_id in enumerate(job_ids):
                async with aclosing(self._choice(index, job_id, ended)) as choice:
                    async for chunk in choice:
                        yield chunk
                        has_begun = True
                if self._place.has_left:
                    return
            if self._include_usage:
                usage = usage_of(ended, self._stage)
                yield self._event({"choices": [], "usage": None if usage is None else usage.model_dump()})
            self._has_ended = True
            yield ServerSentEvent("[DONE]")
        except JobFailure as failure:
            self._has_ended = True
            yield _error(failure.error, failure.job_id, failure.status)
        except OmniJobsError as error:
            self._has_ended = True
            if not has_begun:
                raise
            yield _error(error, job_id)

    async def _choice(self, index: int, job_id: str, ended: list[JobView]) -> AsyncGenerator[ServerSentEvent, None]:
        """Yield the chunks of one choice, and add its job to ``ended``. Raises JobFailure, and what its read raises."""
        told = ToldText()
        stage = self._stage if self._tells_text else None
        grown = grown_text(self._jobs, self._watch, job_id, stage, told, self._place)
        async with aclosing(grown):
            await anext(grown)
            yield self._chunk(index, {"role": "assistant", "content": ""})
            async for text in grown:
                for part in parts_of(text, MOST_CHARS):
                    yield self._chunk(index, {"content": part})
        job = await run_sync(self._see, job_id)
        if self._place.has_left and not job.status.is_final:
            return
        check_completed(job)
        for part in parts_of(told.add_whole(text_of(job)), MOST_CHARS):
            yield self._chunk(index, {"content": part})
        for chunk in await run_sync(lambda: list(self._rest(index, job))):  # logprobs have MiB, perhaps
            yield chunk
        if (sound := await self._sound(job)) is not None:
            async with aclosing(self._spoken(index, sound)) as spoken:
                async for chunk in spoken:
                    yield chunk
        yield self._chunk(index, {}, finish_reason=finish_reason_of(job, self._stage))
        ended.append(job)

    def _rest(self, index: int, job: JobView) -> Iterator[ServerSentEvent]:
        """Yield what only a completed job has beside its sound: calls and logprobs."""
        calls = [{"index": number, **call} for number, call in enumerate(tool_calls_of(job))]
        if calls:
            yield self._chunk(index, {"tool_calls": calls})
        if logprobs := logprobs_of(job, self._stage):
            yield self._chunk(index, {}, logprobs={"content": logprobs, "refusal": None})

    async def _spoken(self, index: int, sound: StreamedSound) -> AsyncGenerator[ServerSentEvent, None]:
        """Yield a sound, read as the client takes it."""
        its = sound.sound
        named = {"id": its.id, "transcript": its.transcript}
        async with aclosing(sound.base64) as pieces:
            async for piece in pieces:
                for data in parts_of(piece.decode("ascii"), _SOUND_CHARS):
                    yield self._chunk(index, {"audio": {**named, "data": data}})
                    named = {}
        yield self._chunk(index, {"audio": {"expires_at": its.expires_at}})

    def _chunk(self, index: int, delta: Mapping[str, Any], **more: Any) -> ServerSentEvent:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        usage = {"usage": None} if self._include_usage else {}
        return self._event({"choices": [choice], **usage})

    def _event(self, its: Mapping[str, Any]) -> ServerSentEvent:
        return ServerSentEvent(json.dumps({**self._head, **its}))


def _error(error: OmniJobsError, job_id: str, status: int | None = None) -> ServerSentEvent:
    return ServerSentEvent(json.dumps({"error": named_shape(error, status, job_id=job_id)}))
