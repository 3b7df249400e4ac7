"""``PoliteBackend``: opens httpcore2's connections, which are read in pieces that keep the event loop free.

httpcore2 reads 64 KiB at once. That many bytes of chunks or of 102s are thousands of events of h11, over which the loop
would stand for a fifth of a second.
"""

import asyncio
import ssl
from typing import Any

import httpcore2

from omni_jobs.fetch.give_way import give_way

_SMALL = 8 << 10  # bytes, of the first read after a write, and while reads take long to work on
_SLOW_S = 0.005


class PoliteBackend(httpcore2.AnyIOBackend):
    """httpcore2's own backend on asyncio, whose connections give way between their reads."""

    async def connect_tcp(self, *args: Any, **kwargs: Any) -> httpcore2.AsyncNetworkStream:
        """Open a connection."""
        return PoliteStream(await super().connect_tcp(*args, **kwargs))


class PoliteStream(httpcore2.AsyncNetworkStream):
    """Reads little after each write, more while the reader keeps up, and little again when it took 5 ms over a read."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._given_at: float | None = None  # when the reader got its last bytes
        self._most = _SMALL

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return some bytes, at most ``max_bytes``."""
        if self._given_at is not None:
            is_slow = self._loop.time() - self._given_at >= _SLOW_S
            self._most = _SMALL if is_slow else 2 * self._most
            if is_slow:
                await give_way()
        data = await self._stream.read(min(max_bytes, self._most), timeout)
        self._given_at = self._loop.time()
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write all the bytes."""
        self._given_at, self._most = None, _SMALL
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        """Return the connection with TLS."""
        return PoliteStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        """Return what the other stream knows."""
        return self._stream.get_extra_info(info)
