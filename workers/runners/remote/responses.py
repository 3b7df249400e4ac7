"""Responses: a text as its events stream, or in one piece."""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from omni_jobs.errors import ModelError
from workers.runners.growing_text import GrowingText
from workers.runners.remote.answers import Response, ResponseEvent, check_answer, load_json, parse_answer
from workers.runners.remote.call import Call
from workers.runners.remote.chat import raise_error
from workers.runners.remote.client import Answer
from workers.runners.remote.events import events
from workers.runners.remote.failures import ServerError, Setback, bad_answer
from workers.runners.remote.prompt import RemotePrompt
from workers.stages.types import OmniModelRunnerOutput, Progress

_DELTA = "response.output_text.delta"
_ENDS = ("response.completed", "response.incomplete", "response.failed")
_TRANSIENT = ("server_error", "rate_limit_exceeded")


async def responses(prompt: RemotePrompt, call: Call) -> OmniModelRunnerOutput:
    """Return the text of a response, its finish reason and usage."""
    body = call.body(
        prompt, input=_items(prompt.messages), stream=call.engine.stream, store=False, instructions=call.engine.system
    )
    total = body.get("max_tokens")
    if "max_tokens" in body:
        body["max_output_tokens"] = body.pop("max_tokens")

    async def exchange() -> OmniModelRunnerOutput:
        async with call.client.exchange("POST", "responses", json=body) as answer:
            if call.engine.stream:
                return await _streamed(answer, call, GrowingText(call.progress, total))
            response = parse_answer(Response, await answer.body())
            return _output(response, response.text, call)

    return await call.until_answered(exchange, Progress(0, total, "tokens"))


def _items(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages of chat completions as items of a response's input. Raises ModelError for a video."""
    return [{"role": each["role"], "content": _content(each["role"], each["content"])} for each in messages]


def _content(role: str, content: str | Sequence[Mapping[str, Any]]) -> str | list[Mapping[str, Any]]:
    if isinstance(content, str):
        return content
    parts: list[Mapping[str, Any]] = []
    for part in content:
        match part["type"]:
            case "text":
                parts.append({"type": "output_text" if role == "assistant" else "input_text", "text": part["text"]})
            case "image_url":
                parts.append({"type": "input_image", "image_url": part["image_url"]["url"], "detail": "auto"})
            case "input_audio":
                parts.append(part)
            case kind:
                raise ModelError(f"responses take no {kind}", field="messages")
    return parts


async def _streamed(answer: Answer, call: Call, text: GrowingText) -> OmniModelRunnerOutput:
    end: Response | None = None
    async with aclosing(events(answer)) as stream:
        async for data in stream:
            value = load_json(data)
            if isinstance(value, dict) and value.get("type") == "error":
                value = {"error": value.get("error") or value}
            raise_error(value, call)
            event = check_answer(ResponseEvent, value)
            if event.type == _DELTA:
                if not isinstance(event.delta, str):
                    raise bad_answer(f"{_DELTA}: delta is no string")
                text.add(event.delta)
            elif event.type in _ENDS:
                end = event.response
    if end is None:
        raise Setback("the answer broke off before its end", counts=True)
    return _output(end, str(text) or end.text, call)


def _output(response: Response, text: str, call: Call) -> OmniModelRunnerOutput:
    """Return the output of a response that has ended. Raises Setback or ModelError for one that has not succeeded."""
    reason = response.incomplete_details.reason if response.incomplete_details else None
    if response.status == "failed":
        error = ServerError.parse(response.error)
        transient = error.code in _TRANSIENT or error.code is None
        raise call.client.failure(500 if transient else 400, error)
    if response.status == "incomplete" and reason == "content_filter":
        raise ModelError("the server's content filter withholds the answer")
    if response.status not in ("completed", "incomplete"):
        raise Setback(f"the response has not ended: {response.status!r:.40}", counts=True)
    return OmniModelRunnerOutput(
        text=text,
        finish_reason="length" if response.status == "incomplete" else "stop",
        usage=response.usage.counts() if response.usage else None,
    )
