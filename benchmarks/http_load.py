"""Keep-alive clients that post as fast as they are answered, on plain sockets: the load itself must cost little."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

__all__ = ["post_all"]


def post_all(host: str, port: int, path: str, bodies: Sequence[bytes], *, clients: int) -> tuple[float, list[float]]:
    """Post each body once; the seconds from the first to the last answer, and each one's own. Raises SystemExit
    for an answer that is no success.
    """
    return asyncio.run(_post_all(host, port, path, bodies, clients))


async def _post_all(
    host: str, port: int, path: str, bodies: Sequence[bytes], clients: int
) -> tuple[float, list[float]]:
    waiting = iter(bodies)
    latencies: list[float] = []
    connections = [await asyncio.open_connection(host, port) for _ in range(clients)]
    head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\nContent-Length: "
    begin = time.perf_counter()
    await asyncio.gather(*(_client(*connection, head, waiting.__next__, latencies) for connection in connections))
    seconds = time.perf_counter() - begin
    for _, writer in connections:
        writer.close()
    return seconds, latencies


async def _client(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    head: str,
    next_body: Callable[[], bytes],
    latencies: list[float],
) -> None:
    while True:
        try:
            body = next_body()
        except StopIteration:
            return
        begin = time.perf_counter()
        writer.write(f"{head}{len(body)}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length:")
        )
        told = await reader.readexactly(length)
        if not answer.startswith(b"HTTP/1.1 2"):
            raise SystemExit(f"{answer.decode()}{told.decode()}")
        latencies.append(time.perf_counter() - begin)
