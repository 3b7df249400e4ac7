"""``speech_events``: a speech as the events of OpenAI's ``stream_format: sse``, once its sound is there."""

from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import aclosing

from sse_starlette import ServerSentEvent

from omni_jobs.errors import OmniJobsError
from omni_jobs.openai.chat.answer import usage_of
from omni_jobs.openai.stream import error_event, event_of
from omni_jobs.views import JobView

_DELTA_BYTES = 192 << 10  # more would hold the event loop for milliseconds; a multiple of 3, so that none is padded


async def speech_events(
    job: JobView, stage: str, pieces: AsyncGenerator[bytes, None]
) -> AsyncGenerator[ServerSentEvent, None]:
    """Yield the sound of a completed job in pieces, and the end with the tokens that ``stage`` counted, or null.

    An error of the store is the last event.
    """
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                for start in range(0, len(piece), _DELTA_BYTES):
                    data = b64encode(piece[start : start + _DELTA_BYTES]).decode("ascii")
                    yield event_of({"type": "speech.audio.delta", "audio": data})
    except OmniJobsError as error:
        yield error_event(error, job.id)
        return
    usage = usage_of([job], stage)
    counted = None if usage is None else {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }  # fmt: skip
    yield event_of({"type": "speech.audio.done", "usage": counted})
