"""What a good server never says: each is one job's error, of bounded size, and the worker lives."""

import asyncio
import gc
import gzip
import tracemalloc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest

from omni_jobs.errors import ModelError, OmniJobsError, RemoteUnavailable
from tests.remote_stages import KEY, Recorded, prompt, recording, remote_runner
from tests.services.openai_server import (
    Answer,
    Connection,
    OpenAIServer,
    Reply,
    Request,
    Stream,
    completion,
    json_answer,
    piece,
)

CHAT = "POST /v1/chat/completions"
MOST = 1 << 20

_EVENTS = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}


async def endless(request: Request, connection: Connection) -> None:
    await connection.head(200, _EVENTS)
    while True:
        await connection.chunk(b"data: " + orjson.dumps(piece("so ")) + b"\n\n")


async def endless_event(request: Request, connection: Connection) -> None:
    await connection.head(200, _EVENTS)
    await connection.chunk(b"data: ")
    while True:
        await connection.chunk(b"x" * 60_000)


async def endless_comments(request: Request, connection: Connection) -> None:
    await connection.head(200, _EVENTS)
    while True:
        await connection.chunk(b": are you still there?\n\n" * 1000)


async def flood_of_chunks(request: Request, connection: Connection) -> None:
    await connection.head(200, _EVENTS)
    while True:
        await connection.send(b"1\r\n:\r\n" * 10_000)


async def ten_gigabytes(request: Request, connection: Connection) -> None:
    await connection.head(200, {"Content-Type": "text/event-stream", "Content-Length": str(10 << 30)})
    while True:
        await connection.send(b" " * 65_536)


async def endless_head(request: Request, connection: Connection) -> None:
    await connection.send(b"HTTP/1.1 200 OK\r\n")
    while True:
        await connection.send(b"X-Again: and again\r\n" * 1000)


async def endless_informations(request: Request, connection: Connection) -> None:
    while True:
        await connection.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)


async def no_http(request: Request, connection: Connection) -> None:
    await connection.send(b"220 mail.example.org ESMTP\r\n\r\n")
    await connection.closed()


async def much_of_no_http(request: Request, connection: Connection) -> None:
    await connection.send(b"x" * 50_000 + b"\r\n\r\n")
    await connection.closed()


async def half(request: Request, connection: Connection) -> None:
    await connection.head(200, {"Content-Type": "text/event-stream", "Content-Length": "1000"})
    await connection.send(b"data: " + orjson.dumps(piece("Half")) + b"\n\n")
    connection.writer.close()


async def hang_up(request: Request, connection: Connection) -> None:
    connection.writer.close()


async def upgrade(request: Request, connection: Connection) -> None:
    await connection.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n")
    await connection.closed()


async def slow_head(request: Request, connection: Connection) -> None:
    while True:
        await connection.send(b"H")
        await asyncio.sleep(0.01)


async def silence(request: Request, connection: Connection) -> None:
    await connection.head(200, _EVENTS)
    await connection.closed()


FINAL: dict[str, tuple[Reply, str]] = {
    "endless": (endless, "max_answer_bytes"),
    "endless event": (endless_event, "max_answer_bytes"),
    "endless comments": (endless_comments, "max_answer_bytes"),
    "a flood of chunks": (flood_of_chunks, "max_answer_bytes"),
    "10 GB": (ten_gigabytes, "max_answer_bytes"),
    "html": (Answer(b"<html>", content_type="text/html"), "text/html, neither JSON nor events: <html>"),
    "no type": (Answer(b"Hello", content_type=""), "of no type, neither JSON nor events: Hello"),
    "no type, of events": (Answer(b"data: x\n\n", content_type=""), "not JSON"),
    "words that begin as events do": (Answer(b"died", content_type="text/plain"), "text/plain, neither.*: died"),
    "not json": (Stream([b"{"]), "not JSON"),
    "nan": (Stream([b'{"choices": [], "usage": {"prompt_tokens": NaN}}']), "not JSON"),
    "surrogate": (Stream([rb'{"choices": [{"delta": {"content": "\ud800"}}]}']), "not JSON"),
    "not utf-8": (Stream([b'{"choices": [{"delta": {"content": "\xff\xfe"}}]}']), "not JSON"),
    "deep": (Stream([b"[" * 100_000]), "more than 50000 values"),
    "nested": (Stream([b"[" * 30_000]), "not JSON"),
    "a list": (Stream([[1]]), "all of it"),
    "no choices": (Stream([{}, b"[DONE]"]), "choices"),
    "choices of a wrong type": (Stream([{"choices": {"0": {}}}]), "choices"),
    "content of a wrong type": (Stream([{"choices": [{"delta": {"content": 7}}]}]), "choices.0.delta.content"),
    "gzip": (
        Answer(
            gzip.compress(b" " * (10 << 20)), content_type="text/event-stream", headers={"Content-Encoding": "gzip"}
        ),
        "max_answer_bytes",
    ),
    "no gzip": (
        Answer(b"Hello", content_type="text/event-stream", headers={"Content-Encoding": "gzip"}),
        "does not decompress",
    ),
    "brotli": (Answer(b"Hello", headers={"Content-Encoding": "br"}), "compressed as 'br'"),
}
LOST: dict[str, tuple[Reply, str]] = {
    "endless head": (endless_head, "connection broke"),
    "endless informations": (endless_informations, "no answer begins within 0.2 s"),
    "much of no http": (much_of_no_http, "connection broke"),
    "no http": (no_http, "connection broke"),
    "half": (half, "connection broke"),
    "half of a gzip": (
        Answer(gzip.compress(b'{"choices"')[:-9], headers={"Content-Encoding": "gzip"}),
        "broke off",
    ),
    "hang up": (hang_up, "connection broke"),
    "upgrade": (upgrade, "connection broke"),
    "slow head": (slow_head, "no answer begins within 0.2 s"),
    "silence": (silence, "silence for 0.2 s"),
    "reset in the middle": (Stream([piece("Half")], broken=True), "connection broke"),
    "an end without a finish reason": (Stream([piece("Half")]), "broke off"),
    "aborted": (Stream([piece("a", "abort"), b"[DONE]"]), "gave the request up"),
    "no body": (Answer(b""), "broke off"),
    "an error in the stream": (Stream([piece("a"), {"error": {"message": "died", "code": 500}}]), "500: died"),
    "internal error": (Answer(b"", 500), "500"),
    "bad gateway": (Answer(b"<html>", 502), "502"),
}


@pytest.mark.parametrize("name", FINAL)
async def test_an_unusable_answer_is_final(openai_server: OpenAIServer, name: str) -> None:
    answer, message = FINAL[name]
    openai_server.answers[CHAT] = [answer, completion("Hi")]
    async with remote_runner(openai_server.url, max_answer_bytes=MOST, tries=3, wait_s=9) as runner:
        with pytest.raises(ModelError, match=message) as caught:
            await asyncio.wait_for(runner.run(prompt(), Recorded()), 60)
        assert runner.healthy
        assert (await runner.run(prompt(), Recorded())).text == "Hi"
    assert not caught.value.retryable


@pytest.mark.parametrize("name", LOST)
async def test_a_lost_answer_is_retryable(openai_server: OpenAIServer, name: str) -> None:
    answer, message = LOST[name]
    openai_server.answers[CHAT] = [answer, completion("Hi")]
    async with remote_runner(openai_server.url, silence_s=0.2, total_s=0.5) as runner:
        with pytest.raises(RemoteUnavailable, match=message) as caught:
            await asyncio.wait_for(runner.run(prompt(), Recorded()), 60)
        assert runner.healthy
        assert (await runner.run(prompt(), Recorded())).text == "Hi"
    assert caught.value.retryable
    assert KEY not in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"choices": []},
        {"choices": [{"message": {"content": {"text": "Hi"}}, "finish_reason": "stop"}]},
        {"choices": [{"message": "Hi", "finish_reason": "stop"}]},
        {"choices": ["Hi"]},
        [],
        None,
    ],
)
async def test_a_whole_answer_of_wrong_types_is_final(openai_server: OpenAIServer, body: Any) -> None:
    openai_server.answers[CHAT] = [json_answer(body)]
    async with remote_runner(openai_server.url, stream=False) as runner:
        with pytest.raises(ModelError, match="cannot be used"):
            await runner.run(prompt(), Recorded())


async def test_memory_is_bounded(openai_server: OpenAIServer) -> None:
    """Endless answers to sixteen runs at once: they take no more than their bound, and a little."""
    openai_server.answers[CHAT] = [endless_event]
    async with remote_runner(openai_server.url, max_answer_bytes=MOST) as runner:
        tracemalloc.start()
        try:
            runs = [runner.run(prompt(), Recorded()) for _ in range(16)]
            ends = await asyncio.wait_for(asyncio.gather(*runs, return_exceptions=True), 60)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert {type(end) for end in ends} == {ModelError}
    assert most < 16 * 4 * MOST


@pytest.mark.parametrize(
    ("endpoint", "answer"),
    [
        ("chat", FINAL["html"][0]),
        ("chat", FINAL["deep"][0]),
        ("chat", LOST["reset in the middle"][0]),
        ("chat", LOST["internal error"][0]),
        ("transcriptions", json_answer({"text": 7})),
        ("transcriptions", Answer(b"<html>", 400)),
    ],
)
async def test_an_error_keeps_nothing_of_its_answer(openai_server: OpenAIServer, endpoint: str, answer: Reply) -> None:
    """Without the collector: an error that is in a cycle keeps the frames, and the answers, that it came out of."""

    async def failed() -> Callable[[], object]:
        try:
            await runner.run(prompt(endpoint, recordings=[recording()]), Recorded())
        except OmniJobsError as error:
            return weakref.ref(error)
        raise AssertionError("it is answered")

    openai_server.answers |= {CHAT: [answer], "POST /v1/audio/transcriptions": [answer]}
    loop, threads = asyncio.get_running_loop(), ThreadPoolExecutor()
    loop.set_default_executor(threads)
    async with remote_runner(openai_server.url, endpoint) as runner:
        gc.disable()
        try:
            error = await failed()
            await asyncio.sleep(0)  # the callbacks of its task run
            threads.shutdown()  # a thread lets go of an error after it has handed it over
            loop.set_default_executor(ThreadPoolExecutor())
            assert error() is None
        finally:
            gc.enable()


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
async def test_lines_may_end_in_any_way_and_come_in_any_pieces(openai_server: OpenAIServer, end: bytes) -> None:
    events = [orjson.dumps(piece("Hi ")), orjson.dumps(piece("€", "stop")), b"[DONE]"]

    async def byte_by_byte(request: Request, connection: Connection) -> None:
        await connection.head(200, _EVENTS)
        for byte in b"".join(b"id: 1" + end + b"data: " + event + end + end for event in events):
            await connection.chunk(bytes([byte]))
        await connection.send(b"0\r\n\r\n")

    openai_server.answers[CHAT] = [byte_by_byte]
    async with remote_runner(openai_server.url) as runner:
        assert (await runner.run(prompt(), Recorded())).text == "Hi €"


async def test_an_event_of_many_lines(openai_server: OpenAIServer) -> None:
    whole = orjson.dumps(piece("Hi", "stop"), option=orjson.OPT_INDENT_2).replace(b"\n", b"\ndata:")
    openai_server.answers[CHAT] = [Stream([whole, b"[DONE]"])]
    async with remote_runner(openai_server.url) as runner:
        assert (await runner.run(prompt(), Recorded())).text == "Hi"
