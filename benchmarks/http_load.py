"""Keep-alive clients that ask as fast as they are answered, on plain sockets: the load itself must cost little."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Answers", "get_all", "post_all"]


@dataclass(frozen=True, slots=True)
class Answers:
    """Seconds from the first request to the last answer; each answer's own, and its body, as they came."""

    seconds: float
    latencies: Sequence[float]
    bodies: Sequence[bytes]


def post_all(
    host: str, port: int, path: str, bodies: Sequence[bytes], *, clients: int, api_key: str | None = None
) -> Answers:
    """Post each body once. Raises SystemExit for an answer that is no success."""
    key = "" if api_key is None else f"Authorization: Bearer {api_key}\r\n"
    head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\n{key}Content-Type: application/json\r\nContent-Length: "
    requests = (f"{head}{len(body)}\r\n\r\n".encode() + body for body in bodies)
    return asyncio.run(_send_all(host, port, requests, clients))


def get_all(host: str, port: int, paths: Sequence[str], *, clients: int) -> Answers:
    """Get each path once. Raises SystemExit for an answer that is no success."""
    requests = (f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode() for path in paths)
    return asyncio.run(_send_all(host, port, requests, clients))


async def _send_all(host: str, port: int, waiting: Iterator[bytes], clients: int) -> Answers:
    told: list[tuple[float, bytes]] = []
    connections = [await asyncio.open_connection(host, port) for _ in range(clients)]
    begin = time.perf_counter()
    await asyncio.gather(*(_client(*connection, waiting.__next__, told) for connection in connections))
    seconds = time.perf_counter() - begin
    for _, writer in connections:
        writer.close()
    return Answers(seconds, [latency for latency, _ in told], [body for _, body in told])


async def _client(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    next_request: Callable[[], bytes],
    told: list[tuple[float, bytes]],
) -> None:
    while True:
        try:
            request = next_request()
        except StopIteration:
            return
        begin = time.perf_counter()
        writer.write(request)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length:")
        )
        content = await reader.readexactly(length)
        if not answer.startswith(b"HTTP/1.1 2"):
            raise SystemExit(f"{answer.decode()}{content.decode()}")
        told.append((time.perf_counter() - begin, content))
