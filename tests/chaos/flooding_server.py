"""``python -m tests.chaos.flooding_server PORT FILE``: a chat server that echoes, or floods as FILE says.

pieces  an answer without end, in large pieces
line    one event without end
drops   an answer without end, byte by byte
heads   a head without end
interim interim answers without end
"""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

from tests.services.openai_server import Connection, OpenAIServer, Request, completion

FLOODS = ("pieces", "line", "drops", "heads", "interim")
_HEAD = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
_MANY = 64 << 10


async def flood(kind: str, connection: Connection) -> None:
    """Send until the client goes away."""
    if kind == "heads":
        await connection.send(b"HTTP/1.1 200 OK\r\n")
        await _again(connection, b"X-More: and more\r\n" * 1000)
    if kind == "interim":
        await _again(connection, b"HTTP/1.1 102 Processing\r\n\r\n" * 1000)
    await connection.head(200, _HEAD)
    if kind == "pieces":
        event = b'data: {"choices": [{"delta": {"content": "%s"}}]}\n\n' % (b"x" * _MANY)
        await _again(connection, b"%x\r\n%s\r\n" % (len(event), event))
    if kind == "line":
        await connection.chunk(b'data: {"choices": [{"delta": {"content": "')
        await _again(connection, b"%x\r\n%s\r\n" % (_MANY, b"x" * _MANY))
    await _again(connection, b"1\r\n:\r\n" * 1000)


async def _again(connection: Connection, data: bytes) -> None:
    while True:
        await connection.send(data)


async def serve(port: int, order: Path) -> None:
    """Serve for ever."""
    server = OpenAIServer()
    server.port = port

    async def answer(request: Request, connection: Connection) -> None:
        server.requests.clear()
        kind = ""
        with suppress(OSError):
            kind = order.read_text()
        if kind:
            await flood(kind, connection)
        else:
            content = request.json["messages"][-1]["content"]
            text = content if isinstance(content, str) else "".join(part["text"] for part in content)
            await completion(*(text[at : at + 100] for at in range(0, len(text), 100)))(request, connection)

    server.answers["POST /v1/chat/completions"] = [answer]
    async with server:
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), Path(sys.argv[2])))
