"""Answers of remote servers, of every endpoint and form, and damage to them: in their bytes, JSON, heads and ends.

``damaged(endpoint, seed, number)`` is the same for the same three.
"""

import base64
import json
import random
import zlib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from tests.oracles import samples

__all__ = ["ENDPOINTS", "DamagedAnswer", "damaged"]

ENDPOINTS: Final = ("chat", "responses", "speech", "transcriptions", "images", "videos")

_USAGE: Final = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
_WAV: Final = samples.wav(0.02)
_PNG: Final = samples.image(8, 8)
_MP4: Final = samples.video(2)
_B64: Final = {"wav": base64.b64encode(_WAV).decode(), "png": base64.b64encode(_PNG).decode()}
_ERROR: Final = {"error": {"message": "no", "type": "x", "param": "temperature", "code": 429, "retry_after": 0.1}}


def _chunk(**choice: Any) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "finish_reason": None, **choice}]}


def _completion(message: Any) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": _USAGE}


_CALLS: Final = [{"index": 0, "type": "function", "function": {"name": "weather", "arguments": "{}"}}]
_ITEMS: Final = [
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Why?"}]},
    {
        "type": "message",
        "content": [{"type": "output_text", "text": "Hello there"}, {"type": "refusal", "refusal": "No"}],
    },
]
_RESPONSE: Final = {"id": "r", "object": "response", "status": "completed", "output": _ITEMS, "usage": _USAGE}
_SEGMENTS: Final = [
    {"id": 0, "start": 0.0, "end": 0.7, "text": " Hello", "avg_logprob": -0.3, "no_speech_prob": 0.01, "tokens": [1]},
    {"id": 1, "start": "0.7", "end": "00:00:01,500", "text": " there", "avg_logprob": None},
]
_WORDS: Final = [{"word": "Hello", "start": 0, "end": 0.7}, {"word": "there", "start": 0.7, "end": 1.5}]
_DELTA: Final = "response.output_text.delta"

# One answer is a list of documents, which come as events unless it has one alone and is drawn to be whole, or bytes.
_CORPUS: Final[Mapping[str, Sequence[list[Any] | bytes]]] = {
    "chat": [
        [
            _chunk(delta={"role": "assistant", "content": ""}),
            _chunk(delta={"reasoning_content": "Why?"}),
            _chunk(delta={"content": "Hello "}),
            _chunk(delta={"content": "there"}),
            _chunk(delta={"tool_calls": _CALLS}),
            _chunk(delta={}, finish_reason="stop"),
            {"choices": [], "usage": _USAGE},
            "[DONE]",
        ],
        [_completion({"content": "Hello there", "refusal": None, "tool_calls": _CALLS})],
        [_completion({"content": [{"type": "text", "text": "Hello"}, {"type": "thinking", "thinking": "Why?"}]})],
        [_completion({"content": None, "audio": {"data": _B64["wav"], "transcript": "Hello"}})],
        [_chunk(delta={"content": "Hello"}), _ERROR],
        [_ERROR],
    ],
    "responses": [
        [
            {"type": "response.created", "response": {"status": "in_progress", "output": []}},
            {"type": _DELTA, "delta": "Hello "},
            {"type": "response.reasoning_text.delta", "delta": "Why?"},
            {"type": _DELTA, "delta": "there"},
            {"type": "response.completed", "response": _RESPONSE},
        ],
        [_RESPONSE],
        [{**_RESPONSE, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}],
        [{**_RESPONSE, "status": "failed", "error": {"code": "server_error", "message": "no"}}],
    ],
    "speech": [
        _WAV,
        samples.audio(0.02, subtype="FLOAT", format="WAV"),
        samples.audio(0.02, subtype="PCM_24", channels=2, format="WAV"),
        samples.audio(0.02, subtype="ULAW", format="WAV"),
        [{"type": "speech.audio.delta", "audio": _B64["wav"]}, {"type": "speech.audio.done", "usage": _USAGE}],
        [_ERROR],
    ],
    "transcriptions": [
        [{"text": "Hello there", "usage": _USAGE}],
        [{"text": "Hello there", "language": "english", "duration": "1.5", "segments": _SEGMENTS, "words": _WORDS}],
        [{"text": "Hello there", "language": "en", "segments": [{**each, "words": _WORDS} for each in _SEGMENTS]}],
        [{"chunks": [{"timestamp": [0, 1.5], "text": "Hello"}, {"timestamp": [1.5, None], "text": "there"}]}],
        [{"type": "transcript.text.delta", "delta": "Hello"}, {"type": "transcript.text.done", "text": "Hello"}],
        b"Hello there",
        [_ERROR],
    ],
    "images": [
        [{"created": 1, "data": [{"b64_json": _B64["png"]}], "usage": _USAGE}],
        [{"data": [{"url": f"data:image/png;base64,{_B64['png']}"}]}],
        [{"data": [{"url": "/made/1.png"}]}],
        [{"type": "image_generation.completed", "b64_json": _B64["png"]}],
        _PNG,
    ],
    "videos": [
        [{"id": "video_1", "object": "video", "status": "completed", "progress": 100}],
        [{"id": "video_1", "object": "video", "status": "queued", "progress": 0}],
        [{"id": "video_1", "object": "video", "status": "failed", "error": {"code": "server_error", "message": "no"}}],
        _MP4,
    ],
}
_TYPES: Final = (
    *("application/json", "text/event-stream", "text/plain", "text/html", "", "audio/wav", "image/png", "video/mp4"),
    *("text/event-stream; charset=utf-8", "APPLICATION/JSON", "application/octet-stream"),
)
_ENCODINGS: Final = ("", "", "", "", "", "", "", "", "identity", "gzip", "deflate", "br", "gzip, gzip")
_ODD: Final[Sequence[Any]] = [
    *(None, True, False, 0, 1, -1, 7, 1.5, 1e308, 2**53 + 1, 2**63, 10**30, "", "x", "stop", "length", "error", "\x00"),
    *("é🎉", "\ud800", "x" * 70_000, "QUJD" * 20_000, "[DONE]", "429", "0400" + "9" * 5000, [], {}, [[]], [{}], [None]),
    *([1] * 3000, ["x"] * 300, {"message": "no"}, {"code": 503}, {"error": "no"}, {"": 0}, [[[[]]]], {"x": {"x": {}}}),
]
_PIECES: Final[Sequence[bytes]] = [
    *(
        b"\n",
        b"\r",
        b"\n\n",
        b"data: ",
        b"data:",
        b": ping\n\n",
        b"event: error\n",
        b"event: ping\n",
        b"data: [DONE]\n\n",
    ),
    *(b"\xef\xbb\xbf", b"\x00", b"\xff", b'"', b"{", b"}", b"[", b"]", b"null", b"NaN", b"9" * 400, b"[" * 1100, b"\\"),
    *(
        b"\\ud800",
        b"data: null\n\n",
        b"data: []\n\n",
        b"data: x\n\n",
        b'{"a":' * 1100,
        b"[]," * 60_000,
        b"{}," * 20_000,
    ),
    *(b" " * 70_000, b"RIFF", b"\x1f\x8b\x08", b"x" * 40_000, b"data: {}\n\n" * 300, b"\n" * 5000, b":\n" * 3000),
]
_KEYS: Final = (
    *("choices", "delta", "message", "content", "error", "errors", "code", "status", "type", "usage", "text", "data"),
    *("b64_json", "url", "audio", "output", "response", "id", "finish_reason", "tool_calls", "refusal", "retry_after"),
    *("segments", "words", "start", "end", "language", "duration", "timestamp"),
)


@dataclass(frozen=True)
class DamagedAnswer:
    """What a server sends; ``chunk``: in chunks of so many bytes, 0: with a length; ``broken``: reset at the end."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    chunk: int
    broken: bool


def damaged(endpoint: str, seed: int, number: int) -> DamagedAnswer:
    draw = random.Random(f"{endpoint} {seed} {number}")
    answer: Any = deepcopy(draw.choice(_CORPUS[endpoint]))
    is_whole = isinstance(answer, bytes) or (len(answer) == 1 and draw.random() < 0.8)
    if not isinstance(answer, bytes) and draw.random() < 0.75:
        for _ in range(draw.choice((1, 1, 1, 2, 3, 5))):
            _change(answer, draw)
    body = answer if isinstance(answer, bytes) else _written(answer, draw, is_whole=is_whole)
    if draw.random() < 0.4:
        body = _bytes_changed(body, draw)
    kind = "application/json" if is_whole and not isinstance(answer, bytes) else "text/event-stream"
    headers = {"Content-Type": draw.choice(_TYPES) if draw.random() < 0.2 or isinstance(answer, bytes) else kind}
    encoding = draw.choice(_ENCODINGS)
    if encoding:
        headers["Content-Encoding"] = encoding
        if draw.random() < 0.8:
            packer = zlib.compressobj(wbits=31 if encoding.startswith("gzip") else draw.choice((15, -15)))
            body = packer.compress(body) + packer.flush()
        if draw.random() < 0.3:
            body = _bytes_changed(body, draw)
    status = 200 if draw.random() < 0.93 else draw.choice((201, 204, 206, 301, 400, 404, 422, 429, 500, 503))
    if draw.random() < 0.05:
        headers["Retry-After"] = draw.choice(("0", "x", "0.01", "1e400", "-1", "9" * 400))
    return DamagedAnswer(status, headers, body, draw.choice((0, 0, 1, 7, 100, 5000)), draw.random() < 0.03)


def _written(documents: list[Any], draw: random.Random, *, is_whole: bool) -> bytes:
    is_ascii = draw.random() < 0.5
    dumped = ("[DONE]" if each == "[DONE]" else json.dumps(each, ensure_ascii=is_ascii) for each in documents)
    texts = [text.encode(errors="replace") for text in dumped]
    if is_whole:
        return texts[0] if texts else b""
    end = draw.choice((b"\n", b"\n", b"\r\n", b"\r"))
    return b"".join(draw.choice((b"data: ", b"data:")) + text + end + end for text in texts)


def _change(value: Any, draw: random.Random) -> None:
    """Change something within lists and objects: replace, remove, rename, insert or wrap."""
    holder = value
    while True:
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        if not keys:
            return
        key: Any = draw.choice(keys)
        inner = holder[key]
        if not isinstance(inner, dict | list) or not inner or draw.random() < 0.25:
            break
        holder = inner
    match draw.randrange(6):
        case 0 | 1:
            holder[key] = deepcopy(draw.choice(_ODD))
        case 2:
            del holder[key]
        case 3:
            new = deepcopy(draw.choice(_ODD))
            if isinstance(holder, dict):
                holder[draw.choice(_KEYS)] = new
            else:
                holder.insert(key, new)
        case 4:
            holder[key] = [inner] if draw.random() < 0.5 else {draw.choice(_KEYS): inner}
        case 5:
            if isinstance(holder, dict):
                holder[draw.choice(_KEYS)] = holder.pop(key)
            else:
                holder.extend(deepcopy(holder[:50]))


def _bytes_changed(body: bytes, draw: random.Random) -> bytes:
    data = bytearray(body or b"x")
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(data) + 1)
        match draw.randrange(5):
            case 0:
                data[at : at + 1] = draw.randbytes(1)
            case 1:
                del data[at : at + draw.choice((1, 2, 16, 1000))]
            case 2 | 3:
                data[at:at] = draw.choice(_PIECES)
            case 4:
                del data[at:]
    return bytes(data)
