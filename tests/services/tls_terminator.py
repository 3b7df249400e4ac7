"""TLS before a real server that speaks none itself: it ends TLS, and passes the plain bytes on.

    with TlsTerminator(valkey_port, certificate) as tls:
        Redis.from_url(f"rediss://localhost:{tls.port}/0?ssl_ca_certs={authority.file}")

``starts_as_postgresql``: the client first asks for TLS by PostgreSQL's SSLRequest, and is told that it gets it.
"""

import asyncio
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from tests.services.certificates import Certificate

_SSL_REQUEST: Final = struct.pack("!ii", 8, 80877103)
_PIECE: Final = 65_536
_READY_S: Final = 10.0


class TlsTerminator:
    """Listens on a free port of loopback, on a thread of its own. Its methods may be called from any thread.

    ``accepted`` counts the handshakes that went well.
    """

    def __init__(self, target_port: int, certificate: Certificate, *, starts_as_postgresql: bool = False) -> None:
        self.port = 0
        self.accepted = 0
        self._begun = 0
        self._target_port = target_port
        self._context = certificate.context()
        self._starts_as_postgresql = starts_as_postgresql
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(_READY_S):
            raise TimeoutError("the terminator does not listen")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(_READY_S)

    def present(self, certificate: Certificate) -> None:
        """Show this certificate to those who connect from now on, and end the connections there are."""

        def change() -> None:
            self._context = certificate.context()
            for task in self._tasks:
                task.cancel()

        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (change(), done.set()))
        done.wait(_READY_S)

    @property
    def refused(self) -> int:
        """How many connections have no handshake that went well."""
        return self._begun - self.accepted

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._end.wait()
        server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("asyncio.start_server calls this in a task")
        self._tasks.add(task)
        self._begun += 1
        try:
            with suppress(OSError, EOFError, asyncio.CancelledError):
                await self._pass_on_both_ways(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _pass_on_both_ways(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._starts_as_postgresql:
            if await reader.readexactly(len(_SSL_REQUEST)) != _SSL_REQUEST:
                return
            writer.write(b"S")
            await writer.drain()
        await writer.start_tls(self._context)
        self.accepted += 1
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        try:
            ways = (_pump(reader, their_writer), _pump(their_reader, writer))
            tasks = [asyncio.create_task(way) for way in ways]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            their_writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_PIECE):
        writer.write(data)
        await writer.drain()
