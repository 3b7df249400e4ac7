"""An OpenAI-compatible server of our own that says whatever a test wants, byte by byte: what a good one never does.

    async with OpenAIServer() as server:
        server.answers["POST /v1/chat/completions"] = [json_answer({...}), Answer(status=503), reset()]
        ...
        server.requests[0].json["messages"]

Answers to one route are given in turn, the last one again and again. An answer is a coroutine function that gets the
request and the connection, so it can be anything: ``Answer`` is the well-behaved kind.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any, Self

Reply = Callable[["Request", "Connection"], Awaitable[None]]


@dataclass(frozen=True)
class Request:
    """A request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def form(self) -> dict[str, tuple[str | None, str, bytes]]:
        """The fields of a multipart body: (file name, media type, bytes) by name."""
        head = f"Content-Type: {self.headers['content-type']}\r\n\r\n".encode()
        message = BytesParser(policy=HTTP).parsebytes(head + self.body)
        return {
            str(part.get_param("name", header="content-disposition")): (
                part.get_filename(),
                part.get_content_type(),
                part.get_payload(decode=True) or b"",
            )
            for part in message.iter_parts()
        }


class Connection:
    """The server's side of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def head(self, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in (headers or {}).items())]
        await self.send("\r\n".join([*lines, "", ""]).encode())

    async def closed(self) -> None:
        """Wait until the client has gone."""
        with suppress(ConnectionError):
            while await self.reader.read(65_536):
                pass

    def reset(self) -> None:
        """Reset the connection, as the kernel does for a process that was killed with bytes unread."""
        found: socket.socket = self.writer.get_extra_info("socket")
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    body: bytes = b""
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    async def __call__(self, request: Request, connection: Connection) -> None:
        headers = {"Content-Type": self.content_type, "Content-Length": str(len(self.body)), **self.headers}
        await connection.head(self.status, headers)
        await connection.send(self.body)


def json_answer(value: Any, status: int = 200, **headers: str) -> Answer:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Answer(json.dumps(value).encode(), status=status, headers=named)


def error_answer(status: int, message: str = "no", **error: Any) -> Answer:
    return json_answer({"error": {"message": message, "type": "x", "param": None, "code": None, **error}}, status)


@dataclass(frozen=True)
class Stream:
    """Server-sent events, then the end, or with ``broken`` none."""

    events: Iterable[Any]
    broken: bool = False
    content_type: str = "text/event-stream; charset=utf-8"

    async def __call__(self, request: Request, connection: Connection) -> None:
        await connection.head(200, {"Content-Type": self.content_type, "Transfer-Encoding": "chunked"})
        for event in self.events:
            data = event if isinstance(event, bytes) else json.dumps(event).encode()
            await connection.chunk(b"data: " + data + b"\n\n")
        if self.broken:
            connection.reset()
        else:
            await connection.send(b"0\r\n\r\n")


def piece(text: str | None = None, finish_reason: str | None = None, **more: Any) -> dict[str, Any]:
    """A chunk of a chat completion."""
    delta = {} if text is None else {"content": text}
    return {"object": "chat.completion.chunk", "choices": [{"delta": delta, "finish_reason": finish_reason}], **more}


def completion(*pieces: str, finish_reason: str = "stop", usage: tuple[int, int] = (3, 2)) -> Stream:
    """A good chat completion."""
    counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    end = {"object": "chat.completion.chunk", "choices": [], "usage": counts}
    return Stream([*(piece(each) for each in pieces), piece(finish_reason=finish_reason), end, b"[DONE]"])


async def reset(request: Request, connection: Connection) -> None:
    """Take the request and reset the connection."""
    connection.reset()


class OpenAIServer:
    """The server, on the test's event loop; ``requests`` has what came."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Reply]] = {"GET /v1/models": [json_answer({"object": "list", "data": []})]}
        self.requests: list[Request] = []
        self.port = 0
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def paths(self, method: str = "POST") -> list[str]:
        """The paths of the requests of one method, in their order."""
        return [request.path for request in self.requests if request.method == method]

    async def start(self) -> None:
        """Listen, on the port of before if there was one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, reuse_address=True)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse and drop all connections."""
        if self._server is not None:
            self._server.close()
        for task in set(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        connection = Connection(reader, writer)
        try:
            async for request in _requests(reader):
                self.requests.append(request)
                route = f"{request.method} {request.path}"
                replies = self.answers.get(route, [error_answer(404, f"no {route}")])
                reply = replies.pop(0) if len(replies) > 1 else replies[0]
                await reply(request, connection)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()


async def _requests(reader: asyncio.StreamReader) -> AsyncIterator[Request]:
    while True:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except asyncio.IncompleteReadError:
            return
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(await reader.readline(), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readline()
        else:
            body = await reader.readexactly(int(headers.get("content-length", 0)))
        yield Request(method, path, headers, body)
