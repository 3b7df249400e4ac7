"""Chat completions: a text as it streams, or with speech in one piece."""

from contextlib import aclosing
from typing import Any

from workers.runners.growing_text import GrowingText
from workers.runners.remote.call import Call
from workers.runners.remote.client import Answer
from workers.runners.remote.document import Document, PathStep
from workers.runners.remote.documents import Documents
from workers.runners.remote.failures import bad_answer
from workers.runners.remote.logprobs import MOST as MOST_LOGPROBS
from workers.runners.remote.logprobs import logprobs_of
from workers.runners.remote.prompt import RemotePrompt
from workers.runners.remote.reply import Reply, add_content, usage_of
from workers.runners.remote.speech import speech_output
from workers.runners.remote.tool_calls import ToolCalls
from workers.stages.types import OmniModelRunnerOutput, Progress

_PATH = "chat/completions"
_CALLS = ("tool_calls", "function_call")
_REASONING = ("reasoning_content", "reasoning")  # names of the same; a server may send both
_DETAILS = "reasoning_details"  # OpenRouter's, beside one of these or alone


async def chat(prompt: RemotePrompt, call: Call) -> OmniModelRunnerOutput:
    """Return the text that a model answers with, its finish reason and usage; its speech as well if it speaks.

    Its reasoning is the result ``reasoning``. A refusal is text, with the warning ``refused``; calls of tools that it
    was not offered, beside a text, are the warning ``tool_calls``.
    """
    speaks = call.engine.speaks and prompt.audio_format is not None
    streams = call.engine.stream and not speaks
    system = [] if call.engine.system is None else [{"role": "system", "content": call.engine.system}]
    messages = [*system, *prompt.messages]
    body = call.body(prompt, messages=messages, stream=streams, seed=call.seed(prompt), **prompt.tool_use)
    total = body.get("max_tokens")
    if "max_tokens" in body:
        body[call.engine.max_tokens_name] = body.pop("max_tokens")
    if streams:
        body["stream_options"] = {"include_usage": True}
    if speaks:
        body["modalities"] = ["text", "audio"]
        body["audio"] = {"voice": prompt.voice, "format": prompt.audio_format}

    async def read(answer: Answer) -> OmniModelRunnerOutput:
        return await _read(answer, prompt, call, GrowingText(call.progress, total))

    return await call.ask(read, Progress(0, total, "tokens"), "POST", _PATH, json=body)


async def _read(answer: Answer, prompt: RemotePrompt, call: Call, text: GrowingText) -> OmniModelRunnerOutput:
    """Return what an answer says, be it one completion or a stream of its pieces."""
    documents = Documents(answer, call)
    reply = Reply(text, ToolCalls() if prompt.tool_use else None)
    wants_logprobs = bool(getattr(prompt.parameters, "logprobs", None))
    logprobs: list[dict[str, Any]] = []
    counted = 0
    speech = bytearray()
    has_choice = False
    async with aclosing(aiter(documents)) as stream:
        async for document in stream:
            has_choice |= document.at("choices", 0) is not None
            message = "message" if document.at("choices", 0, "message") is not None else "delta"
            if has_choice:
                _add(reply, document, message)
                for entry in logprobs_of(document) if wants_logprobs else ():
                    logprobs.append(entry)
                    counted += 1 + len(entry["top_logprobs"])
                    if counted > MOST_LOGPROBS:
                        raise bad_answer(f"more than {MOST_LOGPROBS:,} logprobs")
                if (spoken := await document.medium("choices", 0, message, "audio", "data")) is not None:
                    speech += spoken
            reply.usage = usage_of(document, "usage") or usage_of(document, "x_groq", "usage") or reply.usage
            if reply.finish_reason is not None:
                answer.finish()
    if documents.ended and not has_choice:
        raise bad_answer("choices: there are none")
    output = reply.output(ended=documents.ended)
    if wants_logprobs:
        output = output._replace(result={**output.result, "logprobs": logprobs})
    if not speech or prompt.audio_format is None:
        return output
    sound = await speech_output(memoryview(speech), prompt.audio_format, prompt)
    return output._replace(encoded=sound.encoded, multimodal_outputs=sound.multimodal_outputs, values=sound.values)


def _add(reply: Reply, document: Document, message: str) -> None:
    """Add the first choice of a completion, or of a piece of one, whose ``message`` may be its delta."""
    at = ("choices", 0, message)
    tokens = document.peek("usage", "completion_tokens")
    add_content(reply, document, *at, "content", tokens=tokens if type(tokens) is int and tokens >= 0 else None)
    if document.at(*at, "content") is None:
        reply.say(document.text(*at, "audio", "transcript"))
    reply.refuse(document.text(*at, "refusal"))
    _add_reasoning(reply, document, *at)
    if reply.calls is not None:
        reply.calls.add(document, *at, "tool_calls")
    calls = document.peek(*at, "tool_calls")
    for place in range(min(len(calls), 20)) if isinstance(calls, list) else ():
        reply.call(document.word(*at, "tool_calls", place, "function", "name"))
    if document.peek(*at, "function_call"):
        reply.call(document.word(*at, "function_call", "name"))
    reason = document.peek("choices", 0, "finish_reason")
    if isinstance(reason, dict):  # SGLang's own form
        reason = document.word("choices", 0, "finish_reason", "type") or reason
    if reason:
        reply.finish_reason = reason.lower() if isinstance(reason, str) else "unknown"
        if reply.finish_reason in _CALLS:
            reply.call(None)


def _add_reasoning(reply: Reply, document: Document, *path: PathStep) -> None:
    """Add a message's reasoning, which several of its fields may hold."""
    details = document.peek(*path, _DETAILS)
    places = range(len(details) if isinstance(details, list) else 0)
    if any(document.peek(*path, _DETAILS, place, "data") for place in places):
        reply.hide()
    for name in _REASONING:
        if isinstance(document.peek(*path, name), str) and document.peek(*path, name):
            reply.reason(document.text(*path, name))
            return
    for place in places:
        for name in ("text", "summary"):
            if isinstance(document.peek(*path, _DETAILS, place, name), str):
                part = document.peek(*path, _DETAILS, place, "index")
                reply.reason(document.text(*path, _DETAILS, place, name), part)
