"""``AsyncClient``: performs the steps of the calls on an event loop of asyncio."""

from __future__ import annotations

import asyncio
import inspect
import ssl
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, closing
from typing import Any, TypeVar

import httpx2

from omni_jobs.client.connection import (
    BROKEN,
    ConnectionOptions,
    ended_line,
    request_options,
    store_options,
    unanswered,
)
from omni_jobs.client.methods import ClientMethods
from omni_jobs.client.steps import (
    BulkLines,
    CallStep,
    FileWork,
    HttpRequest,
    Item,
    Items,
    NextChunk,
    Pause,
    Steps,
    StoreRequest,
    Update,
    as_items,
    step_after,
)

T = TypeVar("T")


class AsyncClient(ClientMethods[BulkLines], AbstractAsyncContextManager["AsyncClient"]):
    """Calls the HTTP API of one server from asyncio. Use it with ``async with``, or ``close`` it. Tasks may share it.

    It has the methods of ``Client``, to be awaited, or read with ``async for`` where Client's give an iterator. Files
    are read and written on threads. Every call raises the server's error, a class of ``omni_jobs.errors``, and
    ServerUnavailable if it gave no answer.
    """

    _ITERATOR = "AsyncIterator"

    def _connect(self, options: ConnectionOptions) -> None:
        self._http = httpx2.AsyncClient(**options)

    @staticmethod
    def _returning(call: Callable[..., Steps[T]]) -> Callable[..., Coroutine[Any, Any, T]]:
        async def method(self: AsyncClient, *args: Any, **kwargs: Any) -> T:
            [result] = [item async for item in self._items_of(as_items(call(self._calls, *args, **kwargs)))]
            return result

        return method

    @staticmethod
    def _yielding(call: Callable[..., Items[T]]) -> Callable[..., AsyncIterator[T]]:
        def method(self: AsyncClient, *args: Any, **kwargs: Any) -> AsyncIterator[T]:
            return self._items_of(call(self._calls, *args, **kwargs))

        return method

    async def _items_of(self, steps: Items[T]) -> AsyncGenerator[T]:
        """Perform the steps of a call, and yield its items."""
        with closing(steps):
            async with _AsyncExchange(self._http, self._timeout_s, self._shown_url, self._trusted) as exchange:
                step = step_after(steps)
                while step is not None:
                    outcome: object = None
                    if isinstance(step, Item):
                        yield step.value
                    else:
                        outcome = await exchange.perform(step)
                    step = step_after(steps, outcome)

    async def close(self) -> None:
        """Close the connections to the server."""
        await self._http.aclose()

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _AsyncExchange(AsyncExitStack):
    """Performs the steps of one call. It holds the answer to the latest request until the next one, or its own end."""

    def __init__(
        self, http: httpx2.AsyncClient, timeout_s: float, shown_url: str, trusted: ssl.SSLContext | bool
    ) -> None:
        super().__init__()
        self._request: HttpRequest | StoreRequest | None = None  # the latest
        self._http = http
        self._timeout_s = timeout_s
        self._shown_url = shown_url
        self._trusted = trusted
        self._chunks: AsyncIterator[bytes]

    async def perform(self, step: CallStep) -> object:
        """Perform a step, and return its outcome. Raises what a FileWork, a listener or the lines of a bulk raise."""
        match step:
            case HttpRequest() | StoreRequest() | NextChunk():
                try:
                    return await self._answer(step)
                except BROKEN as error:
                    return unanswered(self._request, self._shown_url, error)
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case FileWork(work):
                return await asyncio.to_thread(work)
            case Update(listener, job):
                told = listener(job)
                if inspect.isawaitable(told):
                    await told
        return None

    async def _answer(self, step: HttpRequest | StoreRequest | NextChunk) -> httpx2.Response | bytes:
        match step:
            case HttpRequest():
                return await self._send(step)
            case StoreRequest():
                return await self._send_to_store(step)
            case NextChunk():
                return await anext(self._chunks, b"")

    async def _send(self, request: HttpRequest) -> httpx2.Response:
        await self.aclose()
        self._request = request
        content = None if request.lines is None else _ended_lines(request.lines)
        options = request_options(request, self._timeout_s, content)
        response = await self.enter_async_context(self._http.stream(request.method, request.path, **options))
        if not (request.is_streamed and response.is_success):
            await response.aread()
        self._chunks = response.aiter_bytes(request.chunk_bytes)
        return response

    async def _send_to_store(self, request: StoreRequest) -> httpx2.Response:
        await self.aclose()
        self._request = request
        http = await self.enter_async_context(
            httpx2.AsyncClient(**store_options(request, self._timeout_s, self._trusted))
        )
        response = await self.enter_async_context(http.stream("GET", request.url))
        self._chunks = response.aiter_bytes(request.chunk_bytes)
        return response


async def _ended_lines(lines: BulkLines) -> AsyncIterator[bytes]:
    if isinstance(lines, AsyncIterable):
        async for line in lines:
            yield ended_line(line)
    else:
        for line in lines:
            yield ended_line(line)
