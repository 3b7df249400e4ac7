"""``BoundedProtocol``: a connection of the HTTP server, which is uvicorn's with httptools, within limits.

``bounded_protocol`` makes the subclass that a server takes. The limits, which uvicorn lacks, are these. A request's
head is bounded in bytes, headers, query parameters and time. The trailers and chunk lengths of a chunked body are
bounded in bytes. The requests that a client sends ahead of their answers are bounded in number. A connection may stay
without a request, or leave its answer unread, only for a time. The number of connections is bounded by ``Places``, and
so are slow ones on a full server. A refused request gets an answer in the API's shape of errors, unless another answer
has begun. A connection that has no request, or does not read, is closed without one.

All use of uvicorn's internals is in this file. tests/unit/http/test_protocol.py names the internals, and pyproject.toml
pins the version.
"""

from __future__ import annotations

import asyncio
import fcntl
import re
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import ClassVar, Literal

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from omni_jobs.errors import HeadTooLarge, MalformedRequest, MethodUnknown, OmniJobsError, ServerBusy, TooSlow
from omni_jobs.http.error_answers import bytes_of
from omni_jobs.http.places import Places, holder_of, is_slow
from omni_jobs.http.process import most_connections, most_unaccepted
from omni_jobs.http.request_ids import HEADER, request_id_of
from omni_jobs.http.request_parameters import network_of
from omni_jobs.settings import Settings

_HEAD_SLICE_BYTES = 4096  # the parser gets a head in such pieces, so that its bytes are counted closely enough,
_BODY_SLICE_BYTES = 64 << 10  # and a body in such, so that it does not work through many chunks before that
_LINGER_S = 2.0  # how long a refused client may still send, so that it reads its answer and gets no reset
_LINGER_BYTES = 1 << 20  # how many bytes it may still send
_HEALTH = (b"/healthz", b"/readyz")
_MOST_PIPELINED = 64  # requests of one connection that were sent ahead of their answers
_MOST_PARAMETERS = 64  # of a query, because Starlette takes 1 µs or so for each
_REQUEST_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [!-~]+ HTTP/1\.[01]\r?\n")
_LEAST_BODY_SHARE = 8  # bytes of a body for each byte of its chunks' lengths, because a chunk takes 1 µs or so

_Timer = Literal["receive", "send"]
"""The two timers of a connection: of a head or of what a refused client still sends, and of an unread answer."""


def bounded_protocol(
    settings: Settings, on_refused: Callable[[OmniJobsError], object] = lambda error: None
) -> type[BoundedProtocol]:
    """Return a subclass of BoundedProtocol with one server's limits, for ``uvicorn.Config(http=…)``.

    ``on_refused`` is told the error of each answer that a connection gives by itself.
    """
    attributes = {
        "on_refused": staticmethod(on_refused),
        "settings": settings,
        "backlog": most_unaccepted(),
        "places": Places(most_connections(settings)),
    }
    return type("BoundedProtocol", (BoundedProtocol,), attributes)


class _Refused(Exception):
    """Ends the parser's work. The protocol has the error to answer."""


class _LastingTransport:
    """The transport of uvicorn's answers. When one closes it, the client can still read the answer first."""

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol = protocol

    def write(self, data: bytes) -> None:
        if not self._protocol.transport.is_closing():  # else the client has left, and uvloop would raise
            self._protocol.transport.write(data)

    def is_closing(self) -> bool:
        return self._protocol.transport.is_closing()

    def close(self) -> None:
        self._protocol.close_behind_answer()


class BoundedProtocol(HttpToolsProtocol):
    """One HTTP connection, within the limits of the settings. ``bounded_protocol`` makes a subclass for each server."""

    settings: ClassVar[Settings]
    backlog: ClassVar[int]  # the most connections that the kernel holds for the server to accept
    places: ClassVar[Places]
    on_refused: ClassVar[staticmethod[[OmniJobsError], object]]

    below: asyncio.Transport | None = None  # of the connection's TLS, whose bytes it carries

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.headers = []
        self._head_begin = b""  # the piece of data with which a head has begun; none where another request ended in it
        self._head_fed = 0  # bytes of the head that is coming in, as the parser got them
        self._header_bytes = 0  # bytes of the headers or trailers that the parser has found
        self._in_head = True  # also between two requests
        self._keeps_alive = True
        self._fed_beside_body = 0  # bytes of trailers and chunks' lengths, above the share that the body may have
        self._refusal: OmniJobsError | None = None
        self._discarded: int | None = None  # bytes that came after a refusal; None: nothing was refused
        self.tenant: str | None = None
        self.in_place_of: str | None = None
        self.has_left = False
        self.when_left: Callable[[], object] | None = None
        self._timers: dict[_Timer, asyncio.TimerHandle] = {}
        self._upgrade_at: int | None = None  # where in a piece of data a head ended that asks for an upgrade
        self._unread_from: tuple[float, int] | None = None  # since when the client must read on, and what it had unread
        if not self.places.enter(self):
            transport.abort()
            return
        self._start_timer("receive", self.settings.head_limit_s, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self.places.leave(self)
        self._leave()
        self._stop_timer("receive")
        self._stop_timer("send")
        super().connection_lost(exc)

    # Requests come in

    def data_received(self, data: bytes) -> None:
        if self._discarded is not None:
            self._discard(data)
            return
        start = 0
        while start < len(data) and self._discarded is None and not self.transport.is_closing():
            piece = data[start : start + (_HEAD_SLICE_BYTES if self._in_head else _BODY_SLICE_BYTES)]
            start += len(piece)
            if self._in_head:
                self._head_begin = self._head_begin if self._head_fed else piece
                self._head_fed += len(piece)
                super().data_received(piece)
            else:
                self._feed_body(piece)
            if self._upgrade_at is not None and self._discarded is None:
                start += self._upgrade_at - len(piece)
                self._begin_without_upgrade()
            if self._in_head and self._head_fed > self.settings.max_head_bytes and self._discarded is None:
                self._refuse(HeadTooLarge(f"the request's head has more than {self.settings.max_head_bytes} bytes"))
        if self._in_head and self.places.is_idle(self) and "receive" not in self._timers and self._discarded is None:
            self._start_timer("receive", self.settings.head_limit_s, self._head_is_late)  # its first byte came

    def _feed_body(self, data: bytes) -> None:
        """Give the parser a part of a body. It keeps a trailer until that ends, so the bytes are bounded here."""
        self._fed_beside_body += len(data)
        super().data_received(data)
        if not self._in_head and self._fed_beside_body > self.settings.max_head_bytes and self._discarded is None:
            self._refuse(self._trailers_too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value) + 4
        if not self._in_head:  # a trailer, which is no header of the request
            if self._header_bytes > self.settings.max_head_bytes:
                self._give_up(self._trailers_too_large())
            return
        super().on_header(name, value)
        if len(self.headers) > self.settings.max_headers:
            self._give_up(HeadTooLarge(f"the request's head has more than {self.settings.max_headers} headers"))
        if self._header_bytes > self.settings.max_head_bytes:
            self._give_up(HeadTooLarge(f"the request's head has more than {self.settings.max_head_bytes} bytes"))

    def on_headers_complete(self) -> None:
        if self._asks_for_upgrade():
            return
        if self.url.count(b"&") >= _MOST_PARAMETERS:
            self._give_up(HeadTooLarge(f"the request's query has more than {_MOST_PARAMETERS} parameters"))
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            self._give_up(MalformedRequest("this server speaks HTTP/1.1"))
        if len(self.pipeline) >= _MOST_PIPELINED:
            self._give_up(MalformedRequest(f"more than {_MOST_PIPELINED} requests were sent ahead of their answers"))
        if not self.places.begin(self, is_for_health=self._asks_for_health()):
            limit = self.places.most
            self._give_up(ServerBusy(f"{limit} connections are open; no more may be (OMNI_JOBS_MAX_CONNECTIONS)"))
        self._in_head = False
        self._head_fed = self._header_bytes = self._fed_beside_body = 0
        self._stop_timer("receive")
        if not self.flow.write_paused:
            self._expect_no_reading()  # the client may leave little unread of the answers before
        super().on_headers_complete()
        self.cycle.scope["state"]["connection"] = self
        self.cycle.transport = _LastingTransport(self)  # type: ignore[assignment]
        self._keeps_alive = self.cycle.keep_alive and not self.places.is_spare(self)
        self.cycle.keep_alive = False  # so an answer that does not wait for the body says that the connection ends

    def _asks_for_upgrade(self) -> bool:
        """Return whether the parser will end behind this head, because it leaves what follows to another protocol."""
        return bool(self.parser.should_upgrade()) and self.parser.get_method() != b"CONNECT"

    def _unsupported_upgrade_warning(self) -> None:
        """Note where a head ended that asks for an upgrade. HTTP allows a server to ignore one, and clients send it."""
        error = sys.exc_info()[1]
        self._upgrade_at = error.args[0] if error is not None else None

    def _begin_without_upgrade(self) -> None:
        """Give the head to a parser again, without its wish for an upgrade, because the body comes in any case."""
        self._upgrade_at = None
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        super().data_received(b"\r\n".join([*lines, b"", b""]))

    def _asks_for_health(self) -> bool:
        """Return whether the request is one for the server's health, which has no body worth waiting for."""
        path = self.url.partition(b"?")[0].removeprefix(self.settings.root_path.encode())
        return path in _HEALTH and self.parser.get_method() in (b"GET", b"HEAD")

    def on_body(self, body: bytes) -> None:
        share = len(body) // _LEAST_BODY_SHARE
        self._fed_beside_body = max(0, self._fed_beside_body - len(body) - share)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._in_head:
            return  # a head that asks for an upgrade
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._keeps_alive
        super().on_message_complete()
        self.headers = []  # they are the scope's; a refusal of what comes next must not find this request's id
        self._head_begin = b""
        self._in_head = True

    # Answers go out

    def shutdown(self) -> None:
        self._keeps_alive = False
        super().shutdown()

    def close_behind_answer(self) -> None:
        """Close the connection once its answer is read, or unread for too long; drop what still comes of a body."""
        if not self._in_head:
            self._linger()
            return
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self._expect_reading()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # An incomplete response is that of a request which was sent ahead, and is answered next.
        if self.transport.is_closing() or not self.cycle.response_complete or self._discarded is not None:
            return
        self.places.rest(self)
        if self._head_fed:
            self._start_timer("receive", self.settings.head_limit_s, self._head_is_late)

    # Clients that do not send or do not read

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer what the client has asked for whole, though it sends no more, and then close. False: close now."""
        if self.transport.get_write_buffer_size():
            self._expect_reading()
        self._leave()
        if self.cycle is None or self.cycle.response_complete or not self._in_head or self._discarded is not None:
            return False
        self._keeps_alive = self.cycle.keep_alive = False
        return True

    def _leave(self) -> None:
        """Note that the client sends no more. Most that do so have gone, so nothing shall wait for their sake."""
        self.has_left = True
        if self.when_left is not None:
            self.when_left()

    def _head_is_late(self) -> None:
        self._stop_timer("receive")
        if self.transport.is_closing():
            return
        if self._head_fed:
            self._refuse(TooSlow(f"the request's head did not come within {self.settings.head_limit_s:g} s"))
        else:
            self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        if not self.transport.get_write_buffer_size():
            self.transport.close()
            return
        if "send" not in self._timers:  # a part of the last answer is unread
            self._expect_reading()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():  # otherwise the timer goes on for the rest of the last answer
            self._expect_no_reading()

    def _expect_reading(self) -> None:
        """Close the connection unless the client reads a part of its answer in time."""
        unread = self._unread_bytes()
        if self._unread_from is None:
            self._unread_from = (self.loop.time(), unread)
        self._start_timer("send", self.settings.silence_limit_s, partial(self._reading_is_late, unread))

    def _expect_no_reading(self) -> None:
        self._stop_timer("send")
        self._unread_from = None

    def _reading_is_late(self, unread_bytes: int) -> None:
        self._stop_timer("send")
        if self._unread_bytes() < unread_bytes:  # the client reads slowly
            self._expect_reading()
        else:
            self.transport.abort()

    def is_slow(self) -> bool:
        """Return whether the server waits for the client, which sends its body or reads its answer slowly."""
        if self._discarded is not None or self.cycle is None:
            return False
        if self._unread_from is not None:
            began, unread = self._unread_from
            return is_slow(self.loop.time() - began, unread - self._unread_bytes())
        body = self.cycle.scope["state"].get("body")
        return not self._in_head and body is not None and is_slow(body.waited_s, body.received)

    @property
    def holder(self) -> str:
        """The tenant of its requests, or the client's network where it is not known."""
        client = self.cycle.scope["client"]
        return holder_of(self.tenant) if self.tenant is not None else network_of(client[0] if client else "")

    def _unread_bytes(self) -> int:
        """Return the bytes of answers that the client's host has not acknowledged: of the transport and the kernel."""
        queued = bytearray(4)
        with suppress(OSError):
            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, queued)
        encrypted = 0 if self.below is None else self.below.get_write_buffer_size()
        return self.transport.get_write_buffer_size() + encrypted + int.from_bytes(queued, sys.byteorder)

    def _start_timer(self, name: _Timer, seconds: float, then: Callable[[], object]) -> None:
        self._stop_timer(name)
        self._timers[name] = self.loop.call_later(seconds, then)

    def _stop_timer(self, name: _Timer) -> None:
        if name in self._timers:
            self._timers.pop(name).cancel()

    # Refusing

    def close(self) -> None:
        """Close the connection, which has no request."""
        self.transport.abort()

    def break_off(self) -> None:
        """End the connection behind what was sent of its answer, which cannot go on; uvicorn logs nothing of it."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        self.close_behind_answer()

    def end_request(self) -> None:
        """Refuse the request, because the server is full and the client slow; drop its answer if that has begun."""
        if self._unread_from is not None:
            self.places.leave(self)
            self.transport.abort()
        else:
            self._refuse(ServerBusy("all connections are busy, and this one moved too few bytes a second"))

    def _trailers_too_large(self) -> HeadTooLarge:
        return HeadTooLarge(f"its trailers and chunks' lengths have more than {self.settings.max_head_bytes} bytes")

    def _give_up(self, error: OmniJobsError) -> None:
        """Refuse from a callback of the parser: the exception ends its work, and uvicorn calls send_400_response."""
        self._refusal = error
        raise _Refused

    def send_400_response(self, msg: str) -> None:
        is_method = isinstance(sys.exc_info()[1], httptools.HttpParserInvalidMethodError)
        unknown = is_method and _REQUEST_LINE.match(self._head_begin) is not None
        self._refuse(self._refusal or (MethodUnknown() if unknown else MalformedRequest()))

    def _refuse(self, error: OmniJobsError) -> None:
        """Answer with an error, in place of the answer to the request in flight if there is one. Then close."""
        request_id = request_id_of(self.headers)
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.response_started or self.pipeline:  # another answer has begun
                self.places.leave(self)
                self.transport.abort()
                return
            request_id = self.cycle.scope["state"].get("request_id", request_id)
            self.cycle.disconnected = True  # the answer of its route is dropped
            self.cycle.scope["state"]["is_refused"] = True
            self.cycle.message_event.set()
        self.transport.write(bytes_of(error, [*self.server_state.default_headers, (HEADER, request_id.encode())]))
        self.on_refused(error)
        self._linger()

    def _linger(self) -> None:
        """Read and drop what the client still sends for a moment, so that it can read its answer. Then close."""
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self._discarded = 0
        self.places.rest(self)
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._start_timer("receive", _LINGER_S, self._stop_lingering)

    def _stop_lingering(self) -> None:
        """Close the connection, unless the client still reads a long answer."""
        if not self._unread_bytes():
            self.transport.abort()
            return
        if "send" not in self._timers:
            self._expect_reading()
        self._start_timer("receive", _LINGER_S, self._stop_lingering)

    def _discard(self, data: bytes) -> None:
        self._discarded = (self._discarded or 0) + len(data)
        if self._discarded > _LINGER_BYTES:
            self.transport.abort()
