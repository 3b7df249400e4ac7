"""The steps of a call: what a generator of :mod:`omni_jobs.client.calls` yields, and what it gets for each.

A call is written once, as a generator that touches no network: it yields a step and gets the step's outcome.
:class:`omni_jobs.client.Client` and :class:`omni_jobs.client.AsyncClient` perform the steps.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import httpx2

from omni_jobs.errors import ServerUnavailable
from omni_jobs.views import JobView

T = TypeVar("T")

BulkBody = Mapping[str, Any] | str | bytes
"""The body of a submit in a bulk: as it is, or its JSON on one line."""

BulkLines = Iterable[BulkBody] | AsyncIterable[BulkBody]
"""The lines of a bulk. The client without ``await`` takes the first kind alone."""


@dataclass(frozen=True)
class HttpRequest:
    """Send a request; the outcome is its answer, read whole unless ``is_streamed`` and of a status below 300.

    The body is ``json``, ``files`` (the parts of a form by their names) or ``lines``. Of an answer that is streamed,
    NextChunk reads pieces of ``chunk_bytes``, or as they come. The server may hold the answer back for ``held_s``.
    """

    method: str
    path: str
    params: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Mapping[str, Any] | None = None
    files: Mapping[str, bytes] | None = None
    lines: BulkLines | None = None
    is_streamed: bool = False
    chunk_bytes: int | None = None
    held_s: float = 0.0  # infinite: nothing limits a silence


@dataclass(frozen=True)
class StoreRequest:
    """Get an artifact from the object store that the server has redirected to; the outcome is the streamed answer.

    The store gets no API key. ``url`` stands in no error, because whoever has it gets the artifact.
    """

    url: str
    chunk_bytes: int

    @property
    def host(self) -> str | None:
        """The store's host."""
        return urlsplit(self.url).hostname


@dataclass(frozen=True)
class NextChunk:
    """Read on in the streamed answer to the latest request; the outcome is its next bytes, none at its end."""


@dataclass(frozen=True)
class Pause:
    """Wait for some seconds."""

    seconds: float


@dataclass(frozen=True)
class FileWork:
    """Call a function that reads or writes a file, and may block; the outcome is what it returns."""

    work: Callable[[], Any]


@dataclass(frozen=True)
class Update:
    """Tell a listener of a job. If it returns an awaitable, AsyncClient awaits it."""

    listener: Callable[[JobView], object]
    job: JobView


@dataclass(frozen=True)
class Item(Generic[T]):
    """Give the caller the next value of a call that gives several; there is no outcome."""

    value: T


CallStep = HttpRequest | StoreRequest | NextChunk | Pause | FileWork | Update
Steps = Generator[CallStep, Any, T]
"""A call that returns one value, when it is run."""
Items = Generator[CallStep | Item[T], Any, None]
"""A call that gives several values, one after the other, when it is run."""


def sent(request: HttpRequest | StoreRequest) -> Steps[httpx2.Response]:
    """Send a request once, and return its answer, of any status. Raises ServerUnavailable."""
    response: httpx2.Response = yield request
    return response


def next_chunk() -> Steps[bytes]:
    """Return the next bytes of the answer that is streamed, none at its end. Raises ServerUnavailable."""
    chunk: bytes = yield NextChunk()
    return chunk


def done(work: Callable[[], T]) -> Steps[T]:
    """Return what a function returns that reads or writes a file."""
    result: T = yield FileWork(work)
    return result


def as_items(steps: Steps[T]) -> Items[T]:
    """Return the same call as one that gives its result as its only item."""
    yield Item((yield from steps))


def step_after(steps: Items[T], outcome: object = None) -> CallStep | Item[T] | None:
    """Give a call the outcome of its last step, and return its next one; None at its end.

    An outcome that is a ServerUnavailable is raised within the call. Raises what the call raises.
    """
    try:
        return steps.throw(outcome) if isinstance(outcome, ServerUnavailable) else steps.send(outcome)
    except StopIteration:
        return None
