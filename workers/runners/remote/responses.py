"""Responses: a text as its events stream, or in one piece."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from omni_jobs.errors import ModelError
from workers.runners.growing_text import GrowingText
from workers.runners.remote.call import Call
from workers.runners.remote.client import Answer
from workers.runners.remote.document import Document
from workers.runners.remote.documents import Documents
from workers.runners.remote.failures import Setback, bad_answer
from workers.runners.remote.prompt import RemotePrompt
from workers.runners.remote.reply import Reply, add_content, usage_of
from workers.runners.remote.server_error import ServerError
from workers.stages.types import OmniModelRunnerOutput, Progress

_DELTAS: Mapping[str, Callable[[Reply, str | None], None]] = {
    "response.output_text.delta": Reply.say,
    "response.refusal.delta": Reply.refuse,
    "response.reasoning_text.delta": Reply.reason,
    "response.reasoning_summary_text.delta": Reply.reason,
}
_ENDS = ("response.completed", "response.incomplete", "response.failed")


async def responses(prompt: RemotePrompt, call: Call) -> OmniModelRunnerOutput:
    """Return the text of a response, its finish reason and usage; what is beside it as ``chat`` does."""
    body = call.body(
        prompt, input=_items(prompt.messages), stream=call.engine.stream, store=False, instructions=call.engine.system
    )
    total = body.get("max_tokens")
    if "max_tokens" in body:
        body["max_output_tokens"] = body.pop("max_tokens")

    async def exchange() -> OmniModelRunnerOutput:
        async with call.client.exchange("POST", "responses", json=body) as answer:
            return await _read(answer, call, GrowingText(call.progress, total))

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


async def _read(answer: Answer, call: Call, text: GrowingText) -> OmniModelRunnerOutput:
    """Return what an answer says, be it one response or a stream of its events."""
    documents = Documents(answer, call)
    reply = Reply(text)
    said = False
    end: Document | None = None
    async with aclosing(aiter(documents)) as stream:
        async for document in stream:
            kind = document.word("type") or ""
            if kind in _DELTAS:
                _DELTAS[kind](reply, document.text("delta"))
                said = True
            elif kind in _ENDS:
                end = Document(document.at("response"), document.long)
                answer.finish()
            elif not kind and (document.peek("object") == "response" or document.peek("output") is not None):
                end = document
    if end is not None and end.value is not None:
        return _output(end, reply, call, is_said=said)
    if said and documents.ended:
        return reply.output(ended=True)
    if documents.ended:
        raise bad_answer("output: there is none")
    raise Setback("the answer broke off before its end", counts=True)


def _output(response: Document, reply: Reply, call: Call, *, is_said: bool) -> OmniModelRunnerOutput:
    """Return the output of a response that has ended, whose texts may have been said in pieces.

    Raises Setback or ModelError for one that has not succeeded.
    """
    status = response.peek("status")
    if status == "failed":
        error = ServerError.parse(response.value, response.long)
        raise call.client.failure(error.status or (500 if error.code is None else 400), error, pause_s=error.pause_s)
    reply.finish_reason = "stop"
    if status == "incomplete":
        reply.finish_reason = response.word("incomplete_details", "reason") or "length"
        if reply.finish_reason != "content_filter":
            reply.finish_reason = "length"
    elif status not in ("completed", None):
        raise Setback(f"the response has not ended: {status!r:.40}", counts=True)
    _add_items(reply, response, is_said=is_said)
    reply.usage = usage_of(response, "usage")
    return reply.output(ended=True)


def _add_items(reply: Reply, response: Document, *, is_said: bool) -> None:
    items = response.at("output")
    if items is not None and not isinstance(items, list):
        raise bad_answer("output: no list")
    for place in range(len(items or ())):
        kind = response.word("output", place, "type") or ""
        if kind.endswith("_call"):
            reply.call(response.word("output", place, "name") or kind)
        elif not is_said and kind == "message":
            add_content(reply, response, "output", place, "content")
        elif not is_said and kind == "reasoning":
            for name in ("content", "summary"):
                if isinstance(response.peek("output", place, name), list):
                    add_content(reply, response, "output", place, name)
