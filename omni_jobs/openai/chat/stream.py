"""``ChatStream``: a chat completion in chunks, as its text grows.

    role → content … → tool calls, logprobs, sound → finish_reason;  usage;  [DONE]

A chunk cannot be taken back. So where an attempt is lost, the next one is followed in silence as long as it writes what
was told; if it writes something else, the stream ends with the error ``text_changed``. The job goes on in any case.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from anyio.to_thread import run_sync
from sse_starlette import ServerSentEvent

from omni_jobs.openai.chat.answer import (
    ChatAudio,
    finish_reason_of,
    head_of,
    logprobs_of,
    text_of,
    tool_calls_of,
    usage_of,
)
from omni_jobs.openai.chat.request import WantedAnswer
from omni_jobs.openai.followed_jobs import FollowedJobs
from omni_jobs.openai.stream import JobsStream, event_of
from omni_jobs.openai.told_text import ToldText, grown_text, parts_of
from omni_jobs.views import JobView

_SOUND_CHARS: Final = 256 << 10  # of one chunk: a multiple of 4, so that each is base64 by itself


@dataclass(frozen=True, slots=True)
class StreamedSound:
    """The sound of a completed job without its ``data``, and the base64 of these in pieces, read as they are taken."""

    sound: ChatAudio
    base64: AsyncGenerator[bytes, None]


class ChatStream(JobsStream):
    """The chunks of one chat completion, a choice of each job."""

    def __init__(
        self,
        jobs: FollowedJobs,
        sound: Callable[[JobView], Awaitable[StreamedSound | None]],
        wanted: WantedAnswer,
    ) -> None:
        """``sound`` is what a completed job has made of sound."""
        super().__init__(jobs)
        self._sound = sound
        self._wanted = wanted
        self._head: dict[str, Any] = {}
        self._tells_text = True  # the stage may run for the sound's sake alone
        self._told = ToldText()  # of the choice
        self._ended: list[JobView] = []

    def ping(self) -> str:
        """Return the data of a chunk that tells nothing, for readers that know chunks alone, and no comments.

        Call it after the first chunk.
        """
        return str(self._chunk(0, {}).data)

    async def _running(self, index: int) -> AsyncGenerator[ServerSentEvent, None]:
        if not index:
            job = await run_sync(self._jobs.see, self._job_id)
            self._head = head_of(job) | {"object": "chat.completion.chunk"}
            self._tells_text = "text" in job.modalities
        self._told = ToldText()
        stage = self._wanted.text_stage if self._tells_text else None
        async with aclosing(grown_text(self._jobs, self._job_id, stage, self._told)) as grown:
            await anext(grown)
            yield self._chunk(index, {"role": "assistant", "content": ""})
            async for text in grown:
                yield self._chunk(index, {"content": text})

    async def _completed(self, index: int, job: JobView) -> AsyncGenerator[ServerSentEvent, None]:
        for part in parts_of(self._told.add_whole(text_of(job))):
            yield self._chunk(index, {"content": part})
        for chunk in await run_sync(lambda: list(self._rest(index, job))):  # logprobs have MiB, perhaps
            yield chunk
        if (sound := await self._sound(job)) is not None:
            async with aclosing(self._spoken(index, sound)) as spoken:
                async for chunk in spoken:
                    yield chunk
        yield self._chunk(index, {}, finish_reason=finish_reason_of(job, self._wanted.text_stage))
        self._ended.append(job)
        if len(self._ended) < len(self._jobs.ids):
            return
        if self._wanted.include_usage:
            usage = usage_of(self._ended, self._wanted.text_stage)
            yield self._event({"choices": [], "usage": None if usage is None else usage.model_dump()})
        self.has_ended = True
        yield ServerSentEvent("[DONE]")

    def _rest(self, index: int, job: JobView) -> Iterator[ServerSentEvent]:
        """Yield what only a completed job has beside its sound: calls and logprobs."""
        calls = [{"index": number, **call} for number, call in enumerate(tool_calls_of(job))]
        if calls:
            yield self._chunk(index, {"tool_calls": calls})
        if logprobs := logprobs_of(job, self._wanted.text_stage):
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
        usage = {"usage": None} if self._wanted.include_usage else {}
        return self._event({"choices": [choice], **usage})

    def _event(self, its: Mapping[str, Any]) -> ServerSentEvent:
        return event_of({**self._head, **its})
