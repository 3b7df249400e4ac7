"""Events in pieces, and the pings between events."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from sse_starlette import ServerSentEvent

from omni_jobs.api import event_stream
from omni_jobs.http.large_event import LargeEvent

SCOPE: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "headers": []}


async def test_no_ping_comes_within_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_PING_S", 0.001)
    pinged = asyncio.Event()
    sent: list[bytes] = []

    def ping() -> str:
        pinged.set()
        return "ping"

    async def next_ping_is_due() -> None:
        pinged.clear()
        await pinged.wait()
        for _ in range(20):  # it has the time to be sent
            await asyncio.sleep(0)

    async def data() -> AsyncGenerator[bytes, None]:
        yield b"{"
        await next_ping_is_due()
        yield b"}"

    async def events() -> AsyncGenerator[ServerSentEvent | LargeEvent, None]:
        yield LargeEvent("large", data())
        await next_ping_is_due()
        yield ServerSentEvent("{}", event="small", sep="\n")

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    await event_stream.stream_of(events(), ping)(SCOPE, receive, send)
    *told, last = b"".join(sent).decode().split("\n\n")
    others = [event for event in told if event != "data: ping"]
    assert (others, last) == (["event: large\ndata: {}", "event: small\ndata: {}"], "")
    assert len(told) > len(others)
