"""``RemoteClient``: requests to one server of the settings, and answers of bounded size.

Everything that the network, the server or its HTTP can do wrong becomes one of the errors of ``failures``. Redirects
are refused. A URL in an answer that has not the server's own origin is fetched through ``omni_jobs.fetch``, without the
key, or not at all.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx2
import orjson

from omni_jobs.errors import ConfigError, ModelError, RemoteUnavailable
from omni_jobs.fetch.failures import Blame, FetchFailed
from omni_jobs.fetch.give_way import Breath
from omni_jobs.fetch.guard import Guard
from omni_jobs.fetch.outgoing import FetchBounds, Outgoing
from omni_jobs.servers import Server
from workers.runners.remote.asked_pause import pause_of
from workers.runners.remote.content_encoding import decoder_of
from workers.runners.remote.document import Document
from workers.runners.remote.engine_settings import RemoteEngine
from workers.runners.remote.failures import Setback, bad_answer, broken_off, failure_of_status, readable
from workers.runners.remote.httpx_hooks import read_politely
from workers.runners.remote.parameters import PARAMETERS_OF_ENDPOINT
from workers.runners.remote.prompt import RemoteFile
from workers.runners.remote.server_error import ServerError

_PIECE_COST = 32  # bytes that a piece of an answer counts for beside its own, because tiny pieces cost time
_ERROR_BYTES = 64 << 10  # of the body that explains a refusal
_END_S = 1.0  # for the end of an answer, after all that matters
_IDLE_S = 2.0  # uvicorn's servers close an idle connection after 5 s, and a request on its way would be lost
_SPARE_CONNECTIONS = 8
_KEPT_CONNECTIONS = 32  # idle ones, each of which httpcore2 asks the kernel about before every request
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class RemoteClient:
    """Sends a stage's requests to its server. ``open`` it, then ``exchange`` any number at once, then ``close`` it.

    tells_times  transcriptions: False once the server has refused to tell the times of what was said
    """

    def __init__(
        self, server: Server, engine: RemoteEngine, stage: str, connections: int, guard: Guard | None = None
    ) -> None:
        """Prepare for up to ``connections`` exchanges at once; nothing is opened or read yet.

        ``guard``: says what is fetched from other hosts; None: nothing.
        """
        self._server = server
        self._engine = engine
        self._stage = stage
        self._connections = connections + _SPARE_CONNECTIONS
        self._parameters: Collection[str] = PARAMETERS_OF_ENDPOINT[engine.endpoint].model_fields
        self._http: httpx2.AsyncClient | None = None
        self._guard = guard
        self._outgoing: Outgoing | None = None
        self._secret: str | None = None
        self.tells_times = True

    async def open(self) -> None:
        """Read the key and the certificates. Raises ConfigError if one of them cannot be used."""
        try:
            key = await asyncio.to_thread(self._server.read_key)
            verify = await asyncio.to_thread(self._trust)
        except ConfigError as error:
            raise ConfigError(
                error.message, field=f"servers.{self._engine.server}.{error.field}", stage=self._stage
            ) from None
        self._secret = None if key is None else key.get_secret_value()
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # it has a line for each request
        parts = urlsplit(self._server.url)
        self._http = httpx2.AsyncClient(
            headers=self._headers(),
            verify=verify,
            trust_env=parts.hostname not in _LOOPBACK,  # this machine reaches itself without a proxy
            follow_redirects=False,
            timeout=httpx2.Timeout(self._engine.silence_s, connect=self._engine.connect_s),
            limits=httpx2.Limits(
                max_connections=self._connections,
                max_keepalive_connections=_KEPT_CONNECTIONS,
                keepalive_expiry=_IDLE_S,
            ),
        )
        read_politely(self._http)
        if self._guard is not None:
            self._outgoing = Outgoing(self._guard)

    def _trust(self) -> ssl.SSLContext | bool:
        if urlsplit(self._server.url).scheme == "http":  # however it is written
            return False  # nothing to verify, and certificates take long to load
        if self._server.ca_file is None:
            return True
        try:
            return ssl.create_default_context(cafile=self._server.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{self._server.ca_file} holds no certificates: {error}", field="ca_file") from None

    def _headers(self) -> dict[str, str]:
        headers = {"User-Agent": "omni-jobs", "Accept": "*/*", "Accept-Encoding": "identity"}  # no gzip bombs
        if self._secret is not None:
            headers["Authorization"] = f"Bearer {self._secret}"
        return headers

    async def close(self) -> None:
        """Close all connections; safe to call twice, and before ``open``."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()
        outgoing, self._outgoing = self._outgoing, None
        if outgoing is not None:
            outgoing.close()

    async def greet(self) -> int:
        """Ask the server for its models and return the answer's status. Raises Setback if no answer comes soon."""
        try:
            async with asyncio.timeout(2 * self._engine.connect_s), self._response("GET", "models") as response:
                return response.status_code
        except TimeoutError:
            raise Setback("no answer", unreachable=True) from None

    async def is_back(self) -> bool:
        """Return whether the server answers at all, be it with a refusal. Raises RemoteUnavailable once closed."""
        try:
            return await self.greet() < 500
        except Setback:
            return False

    @asynccontextmanager
    async def exchange(
        self,
        method: str,
        path: str,
        *,
        json: Mapping[str, Any] | None = None,
        form: Mapping[str, Any] | None = None,
        files: Iterable[tuple[str, RemoteFile]] = (),
        kept: bool = False,
    ) -> AsyncIterator[Answer]:
        """Send a request and give the answer to a block, whose end closes the connection unless all of it was read.

        ``path`` is below the server's base URL, or begins with a slash and is below its origin. The body is ``json``,
        or a ``form`` with ``files`` by field; a list in a field whose name ends in [] is sent as one field each.
        ``kept``: the path names something that the server should have kept.

        Raises Setback, also out of the block, ModelError for a redirect, InvalidRequest, RequestTooLarge or ModelError
        for what the server refuses, and RemoteUnavailable for something that it has not kept, and once the client is
        closed.
        """
        content: dict[str, Any] = {}
        if json is not None:
            content = {"content": _dump(json), "headers": {"Content-Type": "application/json"}}
        elif form is not None:
            parts = [(field, (file.name, file.data, file.media_type)) for field, file in files]
            # A form without a file has to be multipart, too.
            content = {"files": [*_fields(form), *parts]}
        try:
            async with asyncio.timeout(self._engine.total_s), self._response(method, path, **content) as response:
                answer = Answer(response, self._engine.max_answer_bytes)
                if kept and answer.status == 404:
                    raise RemoteUnavailable("the server no longer has what it made", stage=self._stage)
                if not response.is_success:
                    raise await self._refusal(answer)
                yield answer
        except TimeoutError:
            raise Setback(f"no whole answer within {self._engine.total_s:g} s", counts=True) from None

    @asynccontextmanager
    async def _response(self, method: str, path: str, **content: Any) -> AsyncIterator[httpx2.Response]:
        if self._http is None:
            raise RemoteUnavailable("the runner was closed", stage=self._stage)
        parts = urlsplit(self._server.url)
        url = f"{parts.scheme}://{parts.netloc}{path if path.startswith('/') else f'{parts.path}/{path}'}"
        try:
            async with AsyncExitStack() as stack:
                try:
                    async with asyncio.timeout(None) as head:
                        sent = self._http.stream(method, url, extensions={"trace": self._limit(head)}, **content)
                        response = await stack.enter_async_context(sent)
                except TimeoutError:
                    raise Setback(f"no answer begins within {self._engine.silence_s:g} s", counts=True) from None
                finally:
                    del head  # which has the task, whose error may come out of this frame and would keep all of it
                yield response
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError) as error:
            raise Setback(f"no connection: {_words(error)}", unreachable=True) from error
        except httpx2.TimeoutException as error:
            raise Setback(f"silence for {self._engine.silence_s:g} s ({_words(error)})", counts=True) from error
        except httpx2.InvalidURL as error:  # only what an answer names can be one
            raise bad_answer(f"it names a URL that is none: {_words(error)}") from None
        except httpx2.HTTPError as error:
            raise Setback(f"the connection broke: {_words(error)}", counts=True, unreachable=True) from error

    def _limit(self, head: asyncio.Timeout) -> Callable[[str, Any], Awaitable[None]]:
        """Return a trace that gives the head of an answer ``silence_s`` once the request is sent.

        A server may send any number of heads before the one that counts, of which nobody else tells.
        """

        # The answer has this trace, and the limit has its task, whose error would keep the answer alive.
        weak = weakref.ref(head)

        async def trace(event: str, info: Any) -> None:
            del info
            if event.endswith("receive_response_headers.started") and (limit := weak()) is not None:
                limit.reschedule(asyncio.get_running_loop().time() + self._engine.silence_s)

        return trace

    async def _refusal(self, answer: Answer) -> Exception:
        """Return the error that an answer without success means. Its explanation is read as far as that is easy."""
        body = bytearray()
        with suppress(Setback, ModelError):
            body = await answer.body(_ERROR_BYTES)
        error = ServerError.parse_body(body)
        if (asked_s := pause_of(answer.headers)) is not None:
            error = replace(error, pause_s=asked_s)
        return self.failure(answer.status, error)

    def check(self, document: Document, *, is_error: bool = False) -> None:
        """Raise the error that a successful answer's document tells, as if the answer had the error's status, or 500.

        ``is_error``: it surely tells one.
        """
        error = ServerError.told_by(document, is_error=is_error)
        if error is not None:
            raise self.failure(error.status or 500, error)

    def failure(self, status: int, error: ServerError) -> Exception:
        """Return what the server's error means, as ``failure_of_status`` does."""
        said = replace(error, message=self.readable(error.message))
        return failure_of_status(status, said, self._parameters, self._stage)

    def readable(self, text: str) -> str:
        """Return what a server says, fit for people and without the key."""
        return readable(text, self._secret)

    async def fetch(self, url: str) -> memoryview:
        """Return what a URL of an answer leads to, on another host than the server's own.

        Raises ModelError for one that is not fetched, and for what its host does not have, Setback where the host may
        send it later, and RemoteUnavailable once the client is closed.
        """
        if self._guard is None:
            raise bad_answer(f"it names {readable(url, self._secret)[:200]!r}, which is not on the server itself")
        if self._outgoing is None:
            raise RemoteUnavailable("the runner was closed", stage=self._stage)
        bounds = FetchBounds(self._engine.max_answer_bytes, self._engine.total_s, head_s=self._engine.silence_s)
        try:
            return memoryview(await self._outgoing.fetch(url, bounds))
        except FetchFailed as failed:
            if failed.blame is Blame.HOST:
                raise Setback(f"what the answer links to: {failed.reason}", counts=True) from None
            raise bad_answer(f"what it links to: {failed.reason}") from None

    def own_path(self, url: str) -> str | None:
        """Return the path of a URL that an answer names; None for one that has not the server's own origin."""
        try:
            parts = urlsplit(urljoin(self._server.url, url))
            own = urlsplit(self._server.url)
            same = _origin(parts) == _origin(own) and parts.username is None and parts.password is None
        except ValueError:
            same = False
        if not same or not url.isascii() or not url.isprintable():
            return None
        return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


class Answer:
    """An answer of success whose body has not been read. It has at most ``max_bytes``."""

    def __init__(self, response: httpx2.Response, max_bytes: int) -> None:
        self._response = response
        self._max_bytes = max_bytes
        self._until: float | None = None
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self.content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def length(self) -> int | None:
        """The bytes of the body, if the server says so."""
        length = self.headers.get("content-length", "")
        return int(length) if length.isascii() and length.isdecimal() and len(length) < 19 else None

    @property
    def tells_its_end(self) -> bool:
        """Whether its head says how it ends; if not, the end of the connection is its end, or cuts it off."""
        return "content-length" in self.headers or "transfer-encoding" in self.headers

    def finish(self) -> None:
        """Note that all that matters was read: what follows may come in a second more, and may break off."""
        if self._until is None:
            self._until = asyncio.get_running_loop().time() + _END_S

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it comes, decoded, giving way to other tasks. Raises ModelError for a longer one."""
        if (self.length or 0) > self._max_bytes:
            raise self._too_long()
        decoder = decoder_of(self.headers.get("content-encoding", ""))
        breath = Breath()
        taken = 0
        async with aclosing(self._raw()) as pieces:
            async for piece in pieces:
                taken = self._taken(taken, piece)
                await breath.take()
                if decoder is None:
                    yield piece
                    continue
                for part in decoder.decoded(piece):
                    taken = self._taken(taken, part)
                    await breath.take()
                    yield part
        if decoder is not None and not decoder.is_whole and self._until is None:
            raise broken_off()

    async def _raw(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._response.aiter_raw()) as pieces:
            while True:
                try:
                    async with asyncio.timeout_at(self._until):
                        piece = await anext(pieces, None)
                except (TimeoutError, httpx2.HTTPError):
                    if self._until is None:
                        raise
                    return
                if piece is None:
                    return
                yield piece

    def _taken(self, before: int, piece: bytes) -> int:
        taken = before + len(piece) + _PIECE_COST
        if taken > self._max_bytes:
            raise self._too_long()
        return taken

    def _too_long(self) -> ModelError:
        return bad_answer(f"it has more than max_answer_bytes, {self._max_bytes}")

    async def body(self, most: int | None = None) -> bytearray:
        """Return the whole body, or about its first ``most`` bytes. Raises what ``pieces`` raises."""
        body = bytearray()
        async with aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                body += piece
                if most is not None and len(body) >= most:
                    break
        return body


def _dump(body: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except orjson.JSONEncodeError as error:
        raise ModelError(f"the request is no JSON: {error}") from None


def _fields(form: Mapping[str, Any]) -> Iterator[tuple[str, tuple[None, str]]]:
    """Yield the fields of a form: one for each value, of which a name that ends in [] may have several."""
    for name, value in form.items():
        for each in value if name.endswith("[]") and isinstance(value, list) else (value,):
            yield name, (None, each if isinstance(each, str) else orjson.dumps(each).decode())


def _words(error: Exception) -> str:
    """Return an error of httpx2's in words, which can quote all that the server sent."""
    return readable(f"{type(error).__name__}: {error}".removesuffix(": "), None)


def _origin(parts: Any) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or _DEFAULT_PORTS.get(parts.scheme)
