"""``CoalescedCalls``: calls of one method of vLLM's workers, by many requests, sent as few.

A call reaches the engine between two of its steps and costs a message there and back. Calls that wait at the same time
are sent as one, so that requests that end together wait for one message and not for one after another.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

CallArguments = tuple[Any, ...]
"""The arguments of one call."""


class CoalescedCalls:
    """Sends calls that wait at the same time as one; ``await calls(*args)`` returns each rank's answer to a call.

    All calls are made on one event loop.
    """

    def __init__(self, send: Callable[[Sequence[CallArguments]], Awaitable[Sequence[Sequence[Any]]]]) -> None:
        """Take ``send``, which sends the arguments of several calls and returns, per rank, one answer to each call."""
        self._send = send
        self._waiting: list[tuple[CallArguments, asyncio.Future[list[Any]]]] = []
        self._sending: asyncio.Task[None] | None = None

    async def __call__(self, *args: Any) -> list[Any]:
        """Return each rank's answer. Raises the error of ``send``. A call cancelled before its turn is not sent."""
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((args, future))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all())
        return await future

    def close(self) -> None:
        """Cancel all calls that wait for an answer: each raises CancelledError. Safe to call twice."""
        if self._sending is not None:
            self._sending.cancel()

    async def _send_all(self) -> None:
        batch: list[tuple[CallArguments, asyncio.Future[list[Any]]]] = []
        try:
            while batch := [(args, future) for args, future in self._waiting if not future.done()]:
                self._waiting.clear()
                try:
                    ranks = await self._send([args for args, _ in batch])
                except Exception as error:  # noqa: BLE001 — the callers raise it
                    for _, future in batch:
                        if not future.done():
                            future.set_exception(error)
                    continue
                for n, (_, future) in enumerate(batch):
                    if not future.done():
                        future.set_result([answers[n] for answers in ranks])
        finally:
            self._sending = None
            for _, future in (*batch, *self._waiting):
                future.cancel()
            self._waiting.clear()
