"""Chat completions: a text as it streams, or with speech in one piece."""

import base64
import binascii
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from omni_jobs.errors import ModelError
from workers.runners.growing_text import GrowingText
from workers.runners.remote.answers import Chunk, Completion, Usage, check_answer, load_json, parse_answer
from workers.runners.remote.call import Call
from workers.runners.remote.client import Answer
from workers.runners.remote.events import events
from workers.runners.remote.failures import ServerError, Setback, bad_answer
from workers.runners.remote.prompt import RemotePrompt
from workers.runners.remote.speech import speech_output
from workers.stages.types import OmniModelRunnerOutput, Progress

_PATH = "chat/completions"


async def chat(prompt: RemotePrompt, call: Call) -> OmniModelRunnerOutput:
    """Return the text that a model answers with, its finish reason and usage; its speech as well if it speaks."""
    speaks = call.engine.speaks and prompt.audio_format is not None
    streams = call.engine.stream and not speaks
    body = call.body(prompt, messages=_with_system(prompt, call), stream=streams, seed=call.seed(prompt))
    total = body.get("max_tokens")
    if "max_tokens" in body:
        body[call.engine.max_tokens_name] = body.pop("max_tokens")
    if streams:
        body["stream_options"] = {"include_usage": True}
    if speaks:
        body["modalities"] = ["text", "audio"]
        body["audio"] = {"voice": prompt.voice, "format": prompt.audio_format}

    async def exchange() -> OmniModelRunnerOutput:
        async with call.client.exchange("POST", _PATH, json=body) as answer:
            if streams:
                return await _streamed(answer, call, GrowingText(call.progress, total))
            return _whole(parse_answer(Completion, await answer.body()), prompt)

    return await call.until_answered(exchange, Progress(0, total, "tokens"))


def _with_system(prompt: RemotePrompt, call: Call) -> list[Mapping[str, Any]]:
    if call.engine.system is None:
        return list(prompt.messages)
    return [{"role": "system", "content": call.engine.system}, *prompt.messages]


async def _streamed(answer: Answer, call: Call, text: GrowingText) -> OmniModelRunnerOutput:
    finish_reason: str | None = None
    usage: Usage | None = None
    async with aclosing(events(answer)) as stream:
        async for data in stream:
            value = load_json(data)
            raise_error(value, call)
            chunk = check_answer(Chunk, value)
            usage = chunk.usage or usage
            for choice in chunk.choices[:1]:
                if choice.delta.content:
                    text.add(choice.delta.content, chunk.usage.completion_tokens if chunk.usage else None)
                finish_reason = choice.finish_reason or finish_reason
    return OmniModelRunnerOutput(
        text=str(text), finish_reason=_finished(finish_reason), usage=usage.counts() if usage else None
    )


def _whole(completion: Completion, prompt: RemotePrompt) -> OmniModelRunnerOutput:
    choice = completion.choices[0]
    audio = choice.message.audio
    text = choice.message.content
    output = OmniModelRunnerOutput(
        text=(audio.transcript if audio and text is None else text) or "",
        finish_reason=_finished(choice.finish_reason),
        usage=completion.usage.counts() if completion.usage else None,
    )
    if audio is None or prompt.audio_format is None:
        return output
    speech = speech_output(decode_base64(audio.data, "choices.0.message.audio.data"), prompt.audio_format, prompt)
    return output._replace(encoded=speech.encoded, multimodal_outputs=speech.multimodal_outputs, values=speech.values)


def _finished(reason: str | None) -> str:
    """Return "stop" or "length". Raises Setback for a text that has no end, ModelError for one that is withheld."""
    if reason is None:
        raise Setback("the answer broke off before its end", counts=True)
    if reason in ("abort", "error"):
        raise Setback(f"the server gave the request up: {reason}", counts=True)
    if reason == "content_filter":
        raise ModelError("the server's content filter withholds the answer")
    return "length" if reason == "length" else "stop"


def raise_error(value: Any, call: Call) -> None:
    """Raise the error that an event of a stream is, if it is one: as an answer of the status that it names, or 500."""
    if isinstance(value, dict) and (value.get("error") or value.get("object") == "error"):
        error = ServerError.parse(value)
        code = str(error.code)
        raise call.client.failure(int(code) if code.isdecimal() and 400 <= int(code[:4]) < 600 else 500, error)


def decode_base64(encoded: str, field: str) -> bytes:
    """Return the bytes that base64 means. Raises ModelError naming the answer's field, also for no bytes."""
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise bad_answer(f"{field}: not base64: {error}") from None
    if not data:
        raise bad_answer(f"{field}: there are no bytes")
    return data
