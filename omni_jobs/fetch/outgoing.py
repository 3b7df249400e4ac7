"""``Outgoing``: the one guarded outgoing connection.

    link → check → look up → check every address → connect to one of these → request → answer, within bounds

It stands on httpcore2, which follows no redirect, reads no proxy from the environment, keeps no cookie and unpacks no
content. Each exchange has a connection of its own, which ends with it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import httpcore2

from omni_jobs.fetch.failures import Blame, FetchFailed
from omni_jobs.fetch.give_way import Breath
from omni_jobs.fetch.link import Link
from omni_jobs.fetch.pinned_backend import PinnedBackend
from omni_jobs.fetch.resolver import Resolver, SystemResolver

if TYPE_CHECKING:
    from omni_jobs.fetch.guard import Guard

logger = logging.getLogger(__name__)

_HEAD_S: Final = 20.0  # from the look-up of the name to the head's end, however many heads come before the one
_PACE_S: Final = 10.0
_LEAST_RATE: Final = 4096  # bytes a second, over each such time
_PIECE_COST: Final = 32  # bytes that a piece counts for beside its own, because tiny pieces cost time
_MOST_DIGITS: Final = 18
_MAY_RECOVER: Final = (408, 421, 425, 429)  # beside those from 500 on


@dataclass(frozen=True, slots=True)
class FetchBounds:
    """How much may come, and how long that may take.

    max_bytes  of the body
    total_s    seconds from the look-up of the name to the body's end
    head_s     of these, to the head's end
    pace_s     seconds in which at least 4096 bytes a second have to come, on average
    """

    max_bytes: int
    total_s: float
    head_s: float = _HEAD_S
    pace_s: float = _PACE_S


class Outgoing:
    """Speaks to hosts that strangers name. For one event loop; ``close`` it."""

    def __init__(self, guard: Guard, resolver: Resolver | None = None) -> None:
        """``resolver``: None is this machine's."""
        self._guard = guard
        self._resolver = resolver or SystemResolver()
        self._trust: asyncio.Future[ssl.SSLContext] | None = None

    def close(self) -> None:
        """Let go of the resolver's threads."""
        self._resolver.close()

    async def fetch(self, url: str, bounds: FetchBounds, hold: Callable[[int], None] = lambda more: None) -> bytearray:
        """Return what a URL leads to. ``hold`` is told of all bytes that came, before they are kept, and may raise.

        Raises FetchFailed for a link that is not followed, for any other answer than 200, for a compressed one, for
        one beyond its bounds, and for a connection that breaks.
        """
        body = bytearray()
        breath = Breath()
        taken = 0
        async with self.exchange("GET", url, bounds) as answer:
            if answer.status != 200:
                raise _refusal(answer.status)
            _check_head(answer.headers, bounds.max_bytes)
            async with aclosing(_in_pace(answer, bounds)) as pieces:
                async for piece in pieces:
                    taken += len(piece) + _PIECE_COST
                    if len(body) + len(piece) > bounds.max_bytes or taken > 2 * bounds.max_bytes:
                        raise _too_large(bounds.max_bytes)
                    hold(len(piece))
                    body += piece
                    await breath.take()
        return body

    @asynccontextmanager
    async def exchange(
        self,
        method: str,
        url: str,
        bounds: FetchBounds,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
    ) -> AsyncIterator[httpcore2.Response]:
        """Send a request and give the answer to a block, whose end closes the connection.

        The answer has any status, and its body has not been read. ``headers`` stand beside Host, User-Agent, Accept
        and Accept-Encoding. Raises FetchFailed, also out of the block, for a link that is not followed, for a host that
        cannot be reached or trusted, and once ``total_s`` are over.
        """
        link = Link.parse(url)
        self._guard.check(link)
        begin = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(begin + bounds.total_s):
                trust = await self._trusted() if link.scheme == "https" else None
                async with PinnedBackend() as backend:
                    connection = httpcore2.AsyncHTTPConnection(
                        _origin(link), ssl_context=trust, network_backend=backend
                    )
                    try:
                        async with asyncio.timeout_at(begin + bounds.head_s):
                            backend.addresses = await self._addresses(link)
                            answer = await connection.handle_async_request(_request(method, link, headers, content))
                    except TimeoutError:
                        raise FetchFailed("the URL's host does not answer in time", Blame.HOST) from None
                    yield answer
        except TimeoutError:
            raise FetchFailed(f"the URL's host took longer than {bounds.total_s:g} s", Blame.HOST) from None
        except httpcore2.ConnectError as error:
            raise _no_connection(error) from None
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException):
            raise FetchFailed("the connection to the URL's host broke", Blame.HOST) from None

    async def _addresses(self, link: Link) -> Sequence[str]:
        """Return the checked addresses of a link's host, of which one is connected to."""
        literal = link.address
        found = (literal,) if literal is not None else await self._resolver.addresses(link.host, link.port)
        self._guard.check_addresses(found)
        return [str(address) for address in found]

    async def _trusted(self) -> ssl.SSLContext:
        """Return the certificates of this machine, which are read once."""
        if self._trust is None:
            self._trust = asyncio.ensure_future(asyncio.to_thread(httpcore2.default_ssl_context))
        try:
            return await asyncio.shield(self._trust)
        except OSError as error:
            self._trust = None
            logger.error("the certificates to trust cannot be read: %s", error)
            raise FetchFailed("this server cannot read the certificates that it trusts", Blame.HOST) from None


def _origin(link: Link) -> httpcore2.Origin:
    return httpcore2.Origin(link.scheme.encode(), link.host.encode(), link.port)


def _request(method: str, link: Link, headers: Mapping[str, str] | None, content: bytes) -> httpcore2.Request:
    """Return the request. Its Host is the link's, which httpcore2 also asks TLS for and verifies in the certificate."""
    sent = {"Host": link.authority, "User-Agent": "omni-jobs", "Accept": "*/*", "Accept-Encoding": "identity"}
    if content:
        sent["Content-Length"] = str(len(content))
    url = httpcore2.URL(scheme=link.scheme, host=link.host, port=link.port, target=link.target)
    return httpcore2.Request(method, url, headers=list((sent | dict(headers or {})).items()), content=content)


def _check_head(headers: Sequence[tuple[bytes, bytes]], max_bytes: int) -> None:
    """Raise FetchFailed for a body that is compressed, or longer than it may be."""
    for name, value in headers:
        told = value.decode("latin-1").strip().lower()
        if name.lower() == b"content-encoding" and told not in ("", "identity"):
            raise FetchFailed("the URL's host sends it compressed, although that was not asked for", Blame.ANSWER)
        is_length = name.lower() == b"content-length" and told.isdecimal()
        if is_length and (len(told) > _MOST_DIGITS or int(told) > max_bytes):
            raise _too_large(max_bytes)


async def _in_pace(answer: httpcore2.Response, bounds: FetchBounds) -> AsyncGenerator[bytes]:
    """Yield the body as it comes. Raise FetchFailed where less comes than the least rate."""
    clock = asyncio.get_running_loop().time
    due, owed = clock() + bounds.pace_s, _LEAST_RATE * bounds.pace_s
    async with aclosing(answer.aiter_stream()) as stream:
        while True:
            try:
                async with asyncio.timeout_at(due):
                    piece = await anext(stream, None)
            except TimeoutError:
                raise FetchFailed(f"the URL's host sends less than {_LEAST_RATE} bytes a second", Blame.HOST) from None
            if piece is None:
                return
            owed -= len(piece)
            if owed <= 0:
                due, owed = clock() + bounds.pace_s, _LEAST_RATE * bounds.pace_s
            yield piece


def _refusal(status: int) -> FetchFailed:
    if 300 <= status < 400:
        return FetchFailed(f"the URL's host answers {status}, and redirects are not followed", Blame.ANSWER)
    may_recover = status >= 500 or status in _MAY_RECOVER
    return FetchFailed(f"the URL's host answers {status}", Blame.HOST if may_recover else Blame.ANSWER)


def _too_large(max_bytes: int) -> FetchFailed:
    return FetchFailed(f"more than {max_bytes} bytes would come", Blame.SIZE)


def _no_connection(error: httpcore2.ConnectError) -> FetchFailed:
    if isinstance(error.__cause__, ssl.SSLCertVerificationError):
        return FetchFailed("the certificate of the URL's host is not trusted", Blame.ANSWER)
    return FetchFailed("no connection to the URL's host can be made", Blame.HOST)
