"""Keep-alive clients that post as fast as they are answered, on plain sockets: the load itself must cost little."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Answers", "post_all"]


@dataclass(frozen=True, slots=True)
class Answers:
    """Seconds from the first post to the last answer; each answer's own, and its body, as they came."""

    seconds: float
    latencies: Sequence[float]
    bodies: Sequence[bytes]


def post_all(host: str, port: int, path: str, bodies: Sequence[bytes], *, clients: int) -> Answers:
    """Post each body once. Raises SystemExit for an answer that is no success."""
    return asyncio.run(_post_all(host, port, path, bodies, clients))


async def _post_all(host: str, port: int, path: str, bodies: Sequence[bytes], clients: int) -> Answers:
    waiting = iter(bodies)
    told: list[tuple[float, bytes]] = []
    connections = [await asyncio.open_connection(host, port) for _ in range(clients)]
    head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\nContent-Length: "
    begin = time.perf_counter()
    await asyncio.gather(*(_client(*connection, head, waiting.__next__, told) for connection in connections))
    seconds = time.perf_counter() - begin
    for _, writer in connections:
        writer.close()
    return Answers(seconds, [latency for latency, _ in told], [body for _, body in told])


async def _client(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    head: str,
    next_body: Callable[[], bytes],
    told: list[tuple[float, bytes]],
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
        content = await reader.readexactly(length)
        if not answer.startswith(b"HTTP/1.1 2"):
            raise SystemExit(f"{answer.decode()}{content.decode()}")
        told.append((time.perf_counter() - begin, content))
