"""``TranscriptionStream``: a transcription in events, as its text grows: ``transcript.text.delta`` …, then ``.done``.

A delta cannot be taken back: where another attempt writes another text than was told, the stream ends with the error
``text_changed``, and the job goes on.
"""

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from anyio.to_thread import run_sync
from sse_starlette import ServerSentEvent

from omni_jobs.errors import OmniJobsError
from omni_jobs.jobs import Jobs
from omni_jobs.openai.chat.answer import text_of
from omni_jobs.openai.client_names import rename
from omni_jobs.openai.job_errors import JobFailure, check_completed
from omni_jobs.openai.named_field import named_shape
from omni_jobs.openai.told_text import MOST_CHARS, ToldText, grown_text, parts_of
from omni_jobs.openai.transcriptions.answer import token_usage_of, transcription_of
from omni_jobs.openai.transcriptions.request import TRANSCRIPTION_NAMES, WantedTranscription
from omni_jobs.views import JobView
from omni_jobs.watch.watch import Watch, WatchPlace


class TranscriptionStream:
    """The events of one transcription for one client. For one event loop."""

    def __init__(
        self,
        jobs: Jobs,
        watch: Watch,
        see: Callable[[str], JobView],
        leave: Callable[[], None],
        place: WatchPlace,
        wanted: WantedTranscription,
    ) -> None:
        """``see`` reads a job, on a thread. ``leave`` is called where the client leaves before the end.

        ``place`` is the client's among those that watch.
        """
        self._jobs = jobs
        self._watch = watch
        self._see = see
        self._leave = leave
        self._place = place
        self._wanted = wanted
        self._has_ended = False

    async def events(self, job_id: str) -> AsyncGenerator[ServerSentEvent, None]:
        """Yield the events of a job, the first of which has no text.

        An error is the last. End early, without a last event, if the client has left.
        """
        try:
            async with aclosing(self._all(job_id)) as events:
                async for event in events:
                    yield event
        finally:  # it may be cancelled or closed at any event
            if not self._has_ended:
                self._leave()

    async def _all(self, job_id: str) -> AsyncGenerator[ServerSentEvent, None]:
        told = ToldText()
        grown = grown_text(self._jobs, self._watch, job_id, self._wanted.stage, told, self._place)
        try:
            async with aclosing(grown):
                yield _delta(await anext(grown))
                async for text in grown:
                    for part in parts_of(text, MOST_CHARS):
                        yield _delta(part)
            job = await run_sync(self._see, job_id)
            if self._place.has_left and not job.status.is_final:
                return
            check_completed(job)
            for part in parts_of(told.add_whole(text_of(job)), MOST_CHARS):
                yield _delta(part)
            self._has_ended = True
            yield _event({"type": "transcript.text.done", **self._whole(job)})
        except JobFailure as failure:
            self._has_ended = True
            yield _error(failure.error, failure.job_id, failure.status)
        except OmniJobsError as error:
            self._has_ended = True
            yield _error(error, job_id)

    def _whole(self, job: JobView) -> dict[str, Any]:
        """Return the text and what belongs to it. The usage is of tokens, as clients read it in a stream."""
        its = transcription_of(job, self._wanted).model_dump(include={"text", "logprobs"}, exclude_none=True)
        usage = token_usage_of(job, self._wanted.stage)
        return its if usage is None else {**its, "usage": usage.model_dump()}


def _delta(text: str) -> ServerSentEvent:
    return _event({"type": "transcript.text.delta", "delta": text})


def _event(its: Mapping[str, Any]) -> ServerSentEvent:
    return ServerSentEvent(json.dumps(its))


def _error(error: OmniJobsError, job_id: str, status: int | None = None) -> ServerSentEvent:
    rename(error, TRANSCRIPTION_NAMES)
    return _event({"error": named_shape(error, status, job_id=job_id)})
