"""A TCP proxy with faults: ``python -m tests.chaos.proxy NAME=HOST:PORT>HOST:PORT …``.

A process of its own, so that what passes does not wait for the driver. Orders come as lines on
the standard input: ``NAME MODE [ARGUMENT]``; counts of what was done go to the standard output
as ``NAME MODE`` lines, once each. The modes:

    pass                 as it comes
    delay SECONDS        every piece that much later, either way
    stall                nothing passes, connections stay
    refuse               every connection is cut, new ones too
    cut_before_commit N  the next N COMMITs of PostgreSQL clients never reach the server
    cut_after_commit N   the next N COMMITs reach it; their connections end before the reply
    errors SHARE         that share of HTTP requests is answered 500
    corrupt SHARE        in that share of the answers to GET …/payloads/… one byte is another
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Proxy", "main"]

PIECE = 256 * 1024
_METHODS = (b"GET ", b"PUT ", b"HEAD ", b"POST ", b"DELETE ")
_REFUSAL = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass
class Proxy:
    """One listening address and where its connections go."""

    name: str
    listen: tuple[str, int]
    target: tuple[str, int]
    mode: str = "pass"
    argument: float = 0.0
    passing: asyncio.Event = field(default_factory=asyncio.Event)
    connections: set[_Connection] = field(default_factory=set)

    async def serve(self) -> None:
        self.passing.set()
        await asyncio.start_server(self._accept, *self.listen, limit=PIECE)

    def order(self, mode: str, argument: float) -> None:
        self.mode, self.argument = mode, argument
        if mode == "stall":
            self.passing.clear()
        else:
            self.passing.set()
        if mode == "refuse":
            for connection in list(self.connections):
                connection.cut()

    def did(self) -> None:
        print(f"{self.name} {self.mode}", flush=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.mode == "refuse":
            writer.transport.abort()
            return
        try:
            upstream = await asyncio.open_connection(*self.target, limit=PIECE)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(self, writer, upstream[1])
        self.connections.add(connection)
        try:
            await asyncio.gather(
                connection.pump(reader, upstream[1], connection.request),
                connection.pump(upstream[0], writer, connection.answer),
            )
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            connection.cut()
            self.connections.discard(connection)


class _Connection:
    def __init__(self, proxy: Proxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._commit_sent = False
        self._spoil = False  # the answer that comes has a payload in its body
        self._in_body = False

    def cut(self) -> None:
        self._client.transport.abort()
        self._server.transport.abort()

    async def pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: Callable[[bytes], bytes | None]
    ) -> None:
        """Pieces from one side to the other, each as late as the mode says."""
        loop = asyncio.get_running_loop()
        waiting: deque[asyncio.TimerHandle] = deque()
        while piece := await reader.read(PIECE):
            await self._proxy.passing.wait()
            changed = change(piece)
            if changed is None:
                self.cut()
                return
            if self._proxy.mode == "delay":
                waiting.append(loop.call_later(self._proxy.argument, self._write, writer, changed))
            elif waiting and not waiting[-1].cancelled() and waiting[-1].when() > loop.time():
                waiting.append(loop.call_at(waiting[-1].when(), self._write, writer, changed))
            else:
                self._write(writer, changed)
                await writer.drain()
        if waiting and waiting[-1].when() > loop.time():
            await asyncio.sleep(waiting[-1].when() - loop.time() + 0.01)
        self.cut()

    @staticmethod
    def _write(writer: asyncio.StreamWriter, piece: bytes) -> None:
        if not writer.transport.is_closing():
            writer.write(piece)

    def request(self, piece: bytes) -> bytes | None:
        """What a client sends; None: cut."""
        proxy = self._proxy
        if proxy.mode.startswith("cut_") and b"COMMIT\0" in piece and proxy.argument >= 1:
            proxy.argument -= 1
            proxy.did()
            if proxy.mode == "cut_before_commit":
                return None
            self._commit_sent = True
        elif piece.startswith(_METHODS):
            self._in_body = False
            line = piece.split(b"\r\n", 1)[0]
            if proxy.mode == "errors" and random.random() < proxy.argument:
                proxy.did()
                self._client.write(_REFUSAL)
                self._client.close()
                return b""
            self._spoil = (
                proxy.mode == "corrupt"
                and line.startswith(b"GET ")
                and b"/payloads/" in line
                and random.random() < proxy.argument
            )
        return piece

    def answer(self, piece: bytes) -> bytes | None:
        """What the server sends; None: cut."""
        if self._commit_sent:
            return None
        if not self._spoil:
            return piece
        body = 0
        if not self._in_body:
            end = piece.find(b"\r\n\r\n")
            if end < 0:
                return piece
            self._in_body = True
            body = end + 4
        if body >= len(piece):
            return piece
        self._spoil = False
        self._proxy.did()
        at = random.randrange(body, len(piece))
        return piece[:at] + bytes([piece[at] ^ 0x40]) + piece[at + 1 :]


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


async def _run(specifications: list[str]) -> None:
    proxies = {}
    for specification in specifications:
        name, _, addresses = specification.partition("=")
        listen, _, target = addresses.partition(">")
        proxies[name] = Proxy(name, _address(listen), _address(target))
        await proxies[name].serve()
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        name, mode, *argument = line.decode().split()
        proxies[name].order(mode, float(argument[0]) if argument else 0.0)


def main() -> None:
    asyncio.run(_run(sys.argv[1:]))


if __name__ == "__main__":
    main()
