"""Responses: a text as its events stream, or in one piece."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from omni_jobs.errors import ModelError
from workers.runners.growing_text import GrowingText
from workers.runners.remote.call import Call
from workers.runners.remote.client import Answer
from workers.runners.remote.document import Document, PathStep
from workers.runners.remote.documents import Documents
from workers.runners.remote.failures import Setback, bad_answer, broken_off
from workers.runners.remote.prompt import RemotePrompt
from workers.runners.remote.reply import Reply, add_content, usage_of
from workers.runners.remote.server_error import ServerError
from workers.stages.types import OmniModelRunnerOutput, Progress

_DELTAS: Mapping[str, str] = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "content",
    "response.reasoning.delta": "content",
    "response.reasoning_summary_text.delta": "summary",
    "response.reasoning_summary.delta": "summary",
}
"""The events that bring a piece → of what: a message's text or refusal, a reasoning item's content or summary."""
_PLACES = ("item_id", "output_index", "content_index", "summary_index")  # of a piece of reasoning
_ITEM = "response.output_item.done"
_ENDS = ("response.completed", "response.incomplete", "response.failed")


async def responses(prompt: RemotePrompt, call: Call) -> OmniModelRunnerOutput:
    """Return the text of a response, its finish reason and usage; what is beside it as ``chat`` does."""
    items = [{"role": each["role"], "content": _content(each["role"], each["content"])} for each in prompt.messages]
    body = call.body(prompt, input=items, stream=call.engine.stream, store=False, instructions=call.engine.system)
    total = body.get("max_tokens")
    if "max_tokens" in body:
        body["max_output_tokens"] = body.pop("max_tokens")
    if (wanted := body.pop("response_format", None)) is not None:
        body["text"] = {"format": {"type": wanted["type"], **wanted.get("json_schema", {})}}

    async def read(answer: Answer) -> OmniModelRunnerOutput:
        return await _read(answer, call, GrowingText(call.progress, total))

    return await call.ask(read, Progress(0, total, "tokens"), "POST", "responses", json=body)


def _content(role: str, content: str | Sequence[Mapping[str, Any]]) -> str | list[Mapping[str, Any]]:
    """Return a chat completion's content as that of an item of a response's input. Raises ModelError for a video."""
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
    told = _Told(Reply(text))
    end: Document | None = None
    async with aclosing(aiter(documents)) as stream:
        async for document in stream:
            kind = document.word("type") or ""
            if kind in _DELTAS:
                told.add_piece(document, _DELTAS[kind])
            elif kind == _ITEM:
                told.add_items(document, "item")
            elif kind in _ENDS:
                end = Document(document.at("response"), document.long)
                answer.finish()
            elif not kind and (document.peek("object") == "response" or document.peek("output") is not None):
                end = document
    if end is not None and end.value is not None:
        return _output(end, told, call)
    if told.is_begun and documents.ended:
        return told.reply.output(ended=True)
    if documents.ended:
        raise bad_answer("output: there is none")
    raise broken_off()


class _Told:
    """A reply, and which kinds of ``_DELTAS`` it has from where: servers tell some in pieces, some in whole items.

    What came in pieces comes again in its item, and what came in items comes again in the whole response.
    """

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self._in_pieces: set[str] = set()
        self._in_items: set[str] = set()

    @property
    def is_begun(self) -> bool:
        """Whether anything was told."""
        return bool(self._in_pieces or self._in_items)

    def add_piece(self, event: Document, kind: str) -> None:
        """Add the piece that an event brings."""
        self._in_pieces.add(kind)
        at = ("delta", "text") if isinstance(event.peek("delta"), dict) else ("delta",)
        piece = event.text(*at)
        if kind == "text":
            self.reply.say(piece)
        elif kind == "refusal":
            self.reply.refuse(piece)
        else:
            self.reply.reason(piece, (kind, *(event.peek(name) for name in _PLACES)))

    def add_items(self, document: Document, *path: PathStep) -> None:
        """Add of an item, or of a list of all items, what did not come before."""
        if isinstance(document.peek(*path), list):
            before = self._in_pieces | self._in_items
            for place in range(len(document.peek(*path))):
                self._add_item(document, before, *path, place)
        else:
            self._add_item(document, set(self._in_pieces), *path)

    def _add_item(self, document: Document, before: set[str], *path: PathStep) -> None:
        kind = document.word(*path, "type") or ""
        if kind.endswith("_call"):
            self.reply.call(document.word(*path, "name") or kind)
        elif kind == "message":
            self._in_items |= {"text", "refusal"} - before
            add_content(self.reply, document, *path, "content", without=before)
        elif kind == "reasoning":
            if document.peek(*path, "encrypted_content"):
                self.reply.hide()
            texts: list[str] = []
            for name in ("content", "summary"):
                if name not in before:
                    self._in_items.add(name)
                    texts += _texts(document, *path, name)
            for number, text in enumerate(dict.fromkeys(texts)):  # some servers' summary is the content
                self.reply.reason(text, (*path, number))


def _texts(document: Document, *path: PathStep) -> Iterator[str]:
    """Yield the texts of a list of parts, which may be missing."""
    parts = document.peek(*path)
    for place in range(len(parts) if isinstance(parts, list) else 0):
        at = (*path, place) if isinstance(parts[place], str) else (*path, place, "text")
        if isinstance(document.peek(*at), str) and (text := document.text(*at)):
            yield text


def _output(response: Document, told: _Told, call: Call) -> OmniModelRunnerOutput:
    """Return the output of a response that has ended, whose texts may have been told before.

    Raises Setback or ModelError for one that has not succeeded.
    """
    status, reply = response.peek("status"), told.reply
    if status == "failed":
        error = ServerError.parse(response.value, response.long)
        raise call.client.failure(error.status or (500 if error.code is None else 400), error)
    reply.finish_reason = "stop"
    if status == "incomplete":
        reply.finish_reason = response.word("incomplete_details", "reason") or "length"
        if reply.finish_reason != "content_filter":
            reply.finish_reason = "length"
    elif status not in ("completed", None):
        raise Setback(f"the response has not ended: {status!r:.40}", counts=True)
    items = response.at("output")
    if items is not None and not isinstance(items, list):
        raise bad_answer("output: no list")
    if items:
        told.add_items(response, "output")
    reply.usage = usage_of(response, "usage")
    return reply.output(ended=True)
