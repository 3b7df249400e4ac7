"""Calls of one worker method by many requests, those that wait at the same time sent as one.

A call reaches the engine between two of its steps, and costs a message there and back.
Requests that end together so wait for one call, not for one after another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

__all__ = ["GroupedCalls"]

Call = tuple[Any, ...]


class GroupedCalls:
    """``await calls(*args)``: the answers of all ranks to these arguments."""

    def __init__(self, send: Callable[[Sequence[Call]], Awaitable[Sequence[Sequence[Any]]]]) -> None:
        """``send``: several calls' arguments → per rank, an answer to each."""
        self._send = send
        self._waiting: list[tuple[Call, asyncio.Future[list[Any]]]] = []
        self._sending: asyncio.Task[None] | None = None

    async def __call__(self, *args: Any) -> list[Any]:
        """One answer per rank. Raises what ``send`` raises. A call that is cancelled before it is sent is not sent."""
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((args, future))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all())
        return await future

    def close(self) -> None:
        """What waits is cancelled."""
        if self._sending is not None:
            self._sending.cancel()

    async def _send_all(self) -> None:
        group: list[tuple[Call, asyncio.Future[list[Any]]]] = []
        try:
            while group := [(args, future) for args, future in self._waiting if not future.done()]:
                self._waiting.clear()
                try:
                    ranks = await self._send([args for args, _ in group])
                except Exception as error:  # noqa: BLE001 — the callers raise it
                    for _, future in group:
                        if not future.done():
                            future.set_exception(error)
                    continue
                for n, (_, future) in enumerate(group):
                    if not future.done():
                        future.set_result([answers[n] for answers in ranks])
        finally:
            self._sending = None
            for _, future in (*group, *self._waiting):
                future.cancel()
            self._waiting.clear()
