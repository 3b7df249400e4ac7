"""``Client``: performs the steps of the calls, and waits for each."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from typing import Any, TypeVar, cast

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
    BulkBody,
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


class Client(ClientMethods[Iterable[BulkBody]], AbstractContextManager["Client"]):
    """Calls the HTTP API of one server. Use it as a context manager, or ``close`` it. Threads may share it.

    Every call raises the server's error, a class of ``omni_jobs.errors``, and ServerUnavailable if it gave no answer.
    """

    _ITERATOR = "Iterator"

    def _connect(self, options: ConnectionOptions) -> None:
        self._http = httpx2.Client(**options)

    @staticmethod
    def _returning(call: Callable[..., Steps[T]]) -> Callable[..., T]:
        def method(self: Client, *args: Any, **kwargs: Any) -> T:
            [result] = self._items_of(as_items(call(self._calls, *args, **kwargs)))
            return result

        return method

    @staticmethod
    def _yielding(call: Callable[..., Items[T]]) -> Callable[..., Iterator[T]]:
        def method(self: Client, *args: Any, **kwargs: Any) -> Iterator[T]:
            return self._items_of(call(self._calls, *args, **kwargs))

        return method

    def _items_of(self, steps: Items[T]) -> Iterator[T]:
        """Perform the steps of a call, and yield its items."""
        with closing(steps), _Exchange(self._http, self._timeout_s, self._shown_url, self._trusted) as exchange:
            step = step_after(steps)
            while step is not None:
                outcome: object = None
                if isinstance(step, Item):
                    yield step.value
                else:
                    outcome = exchange.perform(step)
                step = step_after(steps, outcome)

    def close(self) -> None:
        """Close the connections to the server."""
        self._http.close()

    def __exit__(self, *_: object) -> None:
        self.close()


class _Exchange(ExitStack):
    """Performs the steps of one call. It holds the answer to the latest request until the next one, or its own end."""

    def __init__(self, http: httpx2.Client, timeout_s: float, shown_url: str, trusted: ssl.SSLContext | bool) -> None:
        super().__init__()
        self._request: HttpRequest | StoreRequest | None = None  # the latest
        self._http = http
        self._timeout_s = timeout_s
        self._shown_url = shown_url
        self._trusted = trusted
        self._chunks: Iterator[bytes] = iter(())

    def perform(self, step: CallStep) -> object:
        """Perform a step, and return its outcome. Raises what a FileWork, a listener or the lines of a bulk raise."""
        match step:
            case HttpRequest() | StoreRequest() | NextChunk():
                try:
                    return self._answer(step)
                except BROKEN as error:
                    return unanswered(self._request, self._shown_url, error)
            case Pause(seconds):
                time.sleep(seconds)
            case FileWork(work):
                return work()
            case Update(listener, job):
                listener(job)
        return None

    def _answer(self, step: HttpRequest | StoreRequest | NextChunk) -> httpx2.Response | bytes:
        match step:
            case HttpRequest():
                return self._send(step)
            case StoreRequest():
                return self._send_to_store(step)
            case NextChunk():
                return next(self._chunks, b"")

    def _send(self, request: HttpRequest) -> httpx2.Response:
        self.close()
        self._request = request
        lines = cast("Iterable[BulkBody] | None", request.lines)  # Client.submit_bulk takes no others
        content = None if lines is None else map(ended_line, lines)
        options = request_options(request, self._timeout_s, content)
        response = self.enter_context(self._http.stream(request.method, request.path, **options))
        if not (request.is_streamed and response.is_success):
            response.read()
        self._chunks = response.iter_bytes(request.chunk_bytes)
        return response

    def _send_to_store(self, request: StoreRequest) -> httpx2.Response:
        self.close()
        self._request = request
        http = self.enter_context(httpx2.Client(**store_options(request, self._timeout_s, self._trusted)))
        response = self.enter_context(http.stream("GET", request.url))
        self._chunks = response.iter_bytes(request.chunk_bytes)
        return response
