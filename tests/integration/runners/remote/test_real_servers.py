"""What servers in use send, by name: each answer as it stands on the wire, and what becomes of it."""

import asyncio
import base64
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_jobs.errors import InvalidRequest, ModelError, OmniJobsError, RemoteUnavailable
from tests.oracles import samples
from tests.remote_stages import Recorded, prompt, remote_runner
from tests.services.openai_server import (
    Answer,
    Connection,
    OpenAIServer,
    Reply,
    Request,
    completion,
    json_answer,
)
from workers.stages.types import OmniModelRunnerOutput

CHAT = "POST /v1/chat/completions"
SPEECH = "POST /v1/audio/speech"
IMAGES = "POST /v1/images/generations"
EVENTS = "text/event-stream"


async def ask(
    server: OpenAIServer, *answers: Reply, endpoint: str = "chat", route: str = CHAT, **settings: Any
) -> OmniModelRunnerOutput:
    server.answers[route] = list(answers)
    async with remote_runner(server.url, endpoint, **settings) as runner:
        return await runner.run(prompt(endpoint, audio_format="wav"), Recorded())


def events(text: str, content_type: str = EVENTS) -> Answer:
    return Answer(text.encode(), content_type=content_type)


def wire(*heads: bytes, body: bytes = b"") -> Reply:
    """Bytes as they are, then the connection's end."""

    async def reply(request: Request, connection: Connection) -> None:
        await connection.send(b"\r\n".join([*heads, b"", b""]) + body)
        connection.writer.close()

    return reply


STREAMS = sorted((Path(__file__).parent / "streams").glob("*.sse"))


@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream.stem)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
async def test_a_stream_of(openai_server: OpenAIServer, stream: Path, end: str) -> None:
    output = await ask(openai_server, events(stream.read_text().replace("\n", end)))
    assert (output.text, output.finish_reason) == ("Hello there", "stop")
    assert output.usage == {"prompt_tokens": 5, "completion_tokens": 2}
    assert output.result in ({}, {"reasoning": "Hm."})
    assert not output.warnings


async def test_a_reason_that_is_an_object_is_read(openai_server: OpenAIServer) -> None:
    choice = {"message": {"content": "Hello"}, "finish_reason": {"type": "length", "length": 8}}
    assert (await ask(openai_server, json_answer({"choices": [choice]}))).finish_reason == "length"


BEGUN = 'data: {"choices":[{"delta":{"content":"Hello "}}]}\n\n'
ENDS: dict[str, tuple[str, type[OmniJobsError], str]] = {
    "llama.cpp of old": (
        'error: {"code":500,"message":"slot died","type":"server_error"}\n\n',
        RemoteUnavailable,
        "slot died",
    ),
    "LM Studio": ('event: error\ndata: {"error":{"message":"model crashed"}}\n\n', RemoteUnavailable, "model crashed"),
    "vLLM": (
        'data: {"error":{"object":"error","message":"EngineCore died","type":"InternalServerError","code":500}}\n\n'
        "data: [DONE]\n\n",
        RemoteUnavailable,
        "500: EngineCore died",
    ),
    "vLLM of old": (
        'data: {"object":"error","message":"too long","type":"BadRequestError","code":400}\n\ndata: [DONE]\n\n',
        ModelError,
        "400: too long",
    ),
    "TGI": ('data: {"error":"Request failed","error_type":"generation"}\n\n', RemoteUnavailable, "Request failed"),
    "OpenRouter": (
        'data: {"choices":[{"delta":{"content":""},"finish_reason":"error"}],"error":{"code":502}}\n\n',
        RemoteUnavailable,
        "502",
    ),
    "Ollama": (
        'data: {"error":{"message":"an error was encountered","type":"api_error"}}\n\n',
        RemoteUnavailable,
        "an error",
    ),
    "Anthropic": (
        'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n',
        RemoteUnavailable,
        "503: Overloaded",
    ),
    "LiteLLM": (
        'data: {"error":{"message":"litellm.RateLimitError: x","type":"None","param":"None","code":"429"}}\n\n',
        RemoteUnavailable,
        "429: litellm.RateLimitError",
    ),
}


@pytest.mark.parametrize("server", ENDS)
async def test_a_stream_that_ends_in_an_error_of(openai_server: OpenAIServer, server: str) -> None:
    end, kind, message = ENDS[server]
    with pytest.raises(kind, match=message) as caught:
        await ask(openai_server, events(BEGUN + end))
    assert type(caught.value) is kind


# Statuses.


@pytest.mark.parametrize("status", [402, 429, 503, 529])
async def test_a_server_that_is_full_is_waited_for(openai_server: OpenAIServer, status: int) -> None:
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    output = await ask(openai_server, json_answer(body, status), completion("Hi"), tries=1, wait_s=9)
    assert output.text == "Hi"


@pytest.mark.parametrize("status", [408, 409, 424, 500, 502, 520, 524, 599])
async def test_a_server_that_failed_is_asked_again(openai_server: OpenAIServer, status: int) -> None:
    page = Answer(b"<html><body><h1>oh</h1></body></html>", status, "text/html")
    assert (await ask(openai_server, page, completion("Hi"), tries=2, wait_s=9)).text == "Hi"
    with pytest.raises(RemoteUnavailable, match=f"{status}: oh"):
        await ask(openai_server, page)


async def test_a_filtered_prompt_of_azure_is_the_jobs_error(openai_server: OpenAIServer) -> None:
    error = {"code": "content_filter", "message": "filtered", "param": "prompt", "innererror": {"code": "x"}}
    with pytest.raises(InvalidRequest, match="filtered") as caught:
        await ask(openai_server, json_answer({"error": error}, 400))
    assert caught.value.field == "messages"


# HTTP.

HELLO = json.dumps({"choices": [{"message": {"content": "Hello there"}, "finish_reason": "stop"}]}).encode()
LENGTH = b"Content-Length: %d" % len(HELLO)
JSON = b"Content-Type: application/json"


@pytest.mark.parametrize(
    "reply",
    [
        wire(b"HTTP/1.0 200 OK", JSON, body=HELLO),
        wire(b"HTTP/1.1 200 OK", JSON, b"Connection: close", body=HELLO),
        wire(b"HTTP/1.1 103 Early Hints", b"Link: </a.css>", b"", b"HTTP/1.1 200 OK", JSON, LENGTH, body=HELLO),
        wire(b"HTTP/1.1 100 Continue", b"", b"HTTP/1.1 200", JSON, LENGTH, body=HELLO),
        wire(b"HTTP/1.1 200 OK", JSON, LENGTH, body=HELLO + b"and more"),
        wire(b"HTTP/1.1 200 OK", JSON, LENGTH, b"Content-Encoding: utf-8", body=HELLO),
        wire(b"HTTP/1.1 200 OK", b"Content-Type: application/json; charset=utf-8", b"Transfer-Encoding: chunked",
             body=b"%x;name=value\r\n%s\r\n0\r\nX-Trailer: 1\r\n\r\n" % (len(HELLO), HELLO)),
    ],
)  # fmt: skip
async def test_http_as_servers_speak_it(openai_server: OpenAIServer, reply: Reply) -> None:
    assert (await ask(openai_server, reply, stream=False)).text == "Hello there"


@pytest.mark.parametrize(
    "reply",
    [
        wire(b"HTTP/1.0 200 OK", JSON, body=HELLO[:-9]),
        wire(b"HTTP/1.1 200 OK", JSON, b"Content-Length: 9999", body=HELLO),
        wire(b"HTTP/1.1 200 OK", JSON, b"Transfer-Encoding: chunked", body=b"%x\r\n%s\r\n" % (len(HELLO), HELLO)),
        wire(b"HTTP/1.1 200 OK", JSON, b"Transfer-Encoding: chunked", body=b"ffff\r\n" + HELLO),
        wire(b"HTTP/1.1 200 OK", JSON, b"Content-Encoding: gzip", body=gzip.compress(HELLO)[:-9]),
    ],
)
async def test_an_answer_that_was_cut_off_is_asked_for_again(openai_server: OpenAIServer, reply: Reply) -> None:
    output = await ask(openai_server, reply, completion("Hi"), stream=False, tries=2, wait_s=9)
    assert output.text == "Hi"


async def test_an_idle_connection_that_the_server_closed_costs_no_try(openai_server: OpenAIServer) -> None:
    closed = asyncio.Event()

    async def once(request: Request, connection: Connection) -> None:
        await completion("Hi")(request, connection)
        connection.writer.close()
        await connection.writer.wait_closed()
        closed.set()

    openai_server.answers[CHAT] = [once]
    async with remote_runner(openai_server.url, tries=1) as runner:
        for _ in range(5):
            closed.clear()
            assert (await runner.run(prompt(), Recorded())).text == "Hi"
            await closed.wait()


async def test_a_server_without_tls_is_a_server_that_is_away(openai_server: OpenAIServer) -> None:
    async with remote_runner(openai_server.url.replace("http:", "https:"), connect_s=0.3, wait_s=0.3) as runner:
        with pytest.raises(RemoteUnavailable, match="no connection: Connect"):
            await runner.run(prompt(), Recorded())
        assert runner.healthy


# Media.


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


SOUND = samples.wav(0.1)


@pytest.mark.parametrize(
    "body",
    [
        {"audio": b64(SOUND)},
        {"audio": f"data:audio/wav;base64,{b64(SOUND)}", "format": "wav"},
        {"audio": {"data": b64(SOUND), "id": "a"}},
        {"audioContent": b64(SOUND)},
        {"data": [{"b64_json": b64(SOUND)}]},
        {"audio_base64": b64(SOUND), "alignment": {"characters": ["H"]}},
    ],
)
async def test_speech_may_come_in_json(openai_server: OpenAIServer, body: Any) -> None:
    output = await ask(openai_server, json_answer(body), endpoint="speech", route=SPEECH)
    assert bytes(output.encoded["audio"].data) == SOUND


@pytest.mark.parametrize("body", [{"audio": "AAAA"}, {"audio": "!"}, {"audio": 7}, {"audio": None}, [], 7])
async def test_json_without_speech_is_refused(openai_server: OpenAIServer, body: Any) -> None:
    with pytest.raises(ModelError, match="application/json, not audio"):
        await ask(openai_server, json_answer(body), endpoint="speech", route=SPEECH)


@pytest.mark.parametrize("stated", [0, 0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF + 1])
async def test_a_wav_that_was_streamed_states_no_length(openai_server: OpenAIServer, stated: int) -> None:
    at = SOUND.index(b"data") + 4
    sound = SOUND[:4] + stated.to_bytes(4, "little") + SOUND[8:at] + stated.to_bytes(4, "little") + SOUND[at + 4 :]
    openai_server.answers[SPEECH] = [Answer(sound, content_type="audio/x-wav")]
    async with remote_runner(openai_server.url, "speech") as runner:
        output = await runner.run(prompt("speech", audio_format="wav", capture=True), Recorded())
    assert np.asarray(output.multimodal_outputs["waveform"]).shape == (1600,)


@pytest.mark.parametrize(
    ("picture", "format_name"),
    [
        (samples.image(8, 8), "png"),
        (samples.image(8, 8, format="WEBP"), "webp"),
        (samples.image(8, 8, format="JPEG"), "jpeg"),
    ],
)
@pytest.mark.parametrize("form", ["base64", "data URL", "alone"])
async def test_a_picture_is_what_its_bytes_are(
    openai_server: OpenAIServer, picture: bytes, format_name: str, form: str
) -> None:
    answer: Reply = Answer(picture, content_type=f"image/{format_name}")
    if form != "alone":
        prefix = "" if form == "base64" else "data:image/png;base64,"  # which may be untrue
        answer = json_answer({"data": [{"b64_json": prefix + b64(picture), "revised_prompt": None}]})
    output = await ask(openai_server, answer, endpoint="images", route=IMAGES)
    assert (bytes(output.encoded["image"].data), output.encoded["image"].format) == (picture, format_name)
