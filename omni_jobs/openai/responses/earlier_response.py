"""``messages_before``: the conversation that an earlier response is, for a response that follows it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from omni_jobs.errors import InvalidRequest
from omni_jobs.openai.chat.answer import text_of, tool_calls_of
from omni_jobs.openai.responses.answer import response_id_of
from omni_jobs.openai.responses.request import kept_of
from omni_jobs.states import JobState
from omni_jobs.views import JobView

FIELD: Final = "previous_response_id"


def messages_before(job: JobView, request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a response, but its instructions, and what it answered, as a chat completion has them.

    Raises InvalidRequest for one that has not completed, and for media, because a later response would load them
    beside all that its own body has. Raises NotFound for a job that was not submitted as a response.
    """
    kept = kept_of(request, response_id_of(job.id))
    if job.status is not JobState.COMPLETED:
        raise InvalidRequest(f"it is {job.status.value}: only a completed response can be followed", field=FIELD)
    messages = [dict(message) for message in request["messages"][1 if kept.get("instructions") else 0 :]]
    parts = [part for each in messages if isinstance(each["content"], list) for part in each["content"]]
    if any(part["type"] != "text" for part in parts):
        raise InvalidRequest("its input has media: send all messages", field=FIELD)
    calls, text = tool_calls_of(job), text_of(job)
    if text or calls:
        messages.append({"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})})
    return messages


def chars_of(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return how many characters the messages have, roughly as many as the bytes in which a client would send them."""
    return sum(_chars(message) for message in messages)


def _chars(value: Any) -> int:
    match value:
        case str():
            return len(value)
        case Mapping():
            return sum(_chars(each) for each in value.values())
        case list():
            return sum(_chars(each) for each in value)
        case _:
            return 0
