"""The frame of a stream: when its client has all of it, and where an error goes."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from sse_starlette import ServerSentEvent

from omni_jobs.errors import OmniJobsError, ServerBusy, TextChanged
from omni_jobs.openai.job_errors import JobFailure
from omni_jobs.openai.stream import ClientStream

BUSY, FAILED = ServerBusy("full"), JobFailure("job-1", TextChanged(), 500)


class Words(ClientStream):
    """Tells words, the last of which is "end", and raises the errors among them."""

    def __init__(self, *words: str | Exception) -> None:
        super().__init__()
        self.words = words

    async def _all(self) -> AsyncGenerator[ServerSentEvent, None]:
        for word in self.words:
            if isinstance(word, Exception):
                raise word
            self.has_ended = word == "end"
            yield ServerSentEvent(word)

    def _error(self, error: OmniJobsError, status: int | None) -> ServerSentEvent:
        return ServerSentEvent(f"{error.code} {status}")


async def heard(stream: Words, most: int = 9) -> list[str]:
    """Return what a client hears that closes the stream after ``most`` events."""
    words: list[str] = []
    async with aclosing(stream.events()) as events:
        async for event in events:
            assert isinstance(event, ServerSentEvent)
            words.append(str(event.data))
            if len(words) == most:
                break
    return words


@pytest.mark.parametrize("most", [1, 2])
def test_a_client_that_closes_before_the_last_event_has_not_all(most: int) -> None:
    stream = Words("one", "two", "end")
    assert len(asyncio.run(heard(stream, most))) == most
    assert not stream.has_ended


@pytest.mark.parametrize("most", [3, 9])
def test_one_that_has_the_last_event_has_all(most: int) -> None:
    stream = Words("one", "two", "end")
    assert asyncio.run(heard(stream, most)) == ["one", "two", "end"]
    assert stream.has_ended


def test_a_stream_that_ends_without_its_last_event_is_not_told() -> None:
    stream = Words("one")
    assert asyncio.run(heard(stream)) == ["one"]
    assert not stream.has_ended


@pytest.mark.parametrize("error", [BUSY, FAILED])
def test_an_error_before_the_first_event_is_the_request_s(error: Exception) -> None:
    stream = Words(error)
    with pytest.raises(type(error)):
        asyncio.run(heard(stream))


@pytest.mark.parametrize(("error", "told"), [(BUSY, "server_busy None"), (FAILED, "text_changed 500")])
@pytest.mark.parametrize("most", [2, 9])
def test_a_later_error_is_the_last_event(error: Exception, told: str, most: int) -> None:
    stream = Words("one", error)
    assert asyncio.run(heard(stream, most)) == ["one", told]
    assert stream.has_ended
