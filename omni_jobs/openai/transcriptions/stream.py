"""``TranscriptionStream``: a transcription in events, as its text grows: ``transcript.text.delta`` …, then ``.done``.

A delta cannot be taken back: where another attempt writes another text than was told, the stream ends with the error
``text_changed``, and the job goes on.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from sse_starlette import ServerSentEvent

from omni_jobs.openai.chat.answer import text_of
from omni_jobs.openai.followed_jobs import FollowedJobs
from omni_jobs.openai.stream import JobsStream, event_of
from omni_jobs.openai.told_text import ToldText, grown_text, parts_of
from omni_jobs.openai.transcriptions.answer import token_usage_of, transcription_of
from omni_jobs.openai.transcriptions.request import WantedTranscription
from omni_jobs.views import JobView


class TranscriptionStream(JobsStream):
    """The events of one transcription, the first of which has no text."""

    def __init__(self, jobs: FollowedJobs, wanted: WantedTranscription) -> None:
        super().__init__(jobs)
        self._wanted = wanted
        self._told = ToldText()

    async def _running(self, index: int) -> AsyncGenerator[ServerSentEvent, None]:
        async with aclosing(grown_text(self._jobs, self._job_id, self._wanted.stage, self._told)) as grown:
            async for text in grown:
                yield _delta(text)

    async def _completed(self, index: int, job: JobView) -> AsyncGenerator[ServerSentEvent, None]:
        for part in parts_of(self._told.add_whole(text_of(job))):
            yield _delta(part)
        its = transcription_of(job, self._wanted).model_dump(include={"text", "logprobs"}, exclude_none=True)
        usage = token_usage_of(job, self._wanted.stage)  # of tokens, as clients read it in a stream
        counted = {} if usage is None else {"usage": usage.model_dump()}
        self.has_ended = True
        yield event_of({"type": "transcript.text.done", **its, **counted})


def _delta(text: str) -> ServerSentEvent:
    return event_of({"type": "transcript.text.delta", "delta": text})
