"""Connections of the HTTP server: uvicorn's with httptools, and the limits that it lacks.

A request's head is bounded in bytes, headers and time, what comes after it without being body (a chunked body's
trailers) in bytes, a connection in the time that it may stand without a request or without reading its answer, and
all connections in their number. Whatever is refused here, before a
request is one, is answered in the API's one shape of errors.

All use of uvicorn's internals is in this file; tests/unit/api/test_protocol.py names what it relies on, and
pyproject.toml pins the version.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import resource
import sys
import termios
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from omni_jobs.errors import HeadTooLarge, MalformedRequest, OmniJobsError, ServerBusy, TooSlow
from omni_jobs.settings import Settings

__all__ = ["BoundedProtocol", "ConnectionLimits", "bounded_protocol"]

_SLICE_BYTES = 4096  # a head is fed in such pieces, so that its bytes are counted closely enough
_LINGER_S = 2.0  # so long a refused client may still send, so that it reads its answer instead of a reset,
_LINGER_BYTES = 1 << 20  # but no more than this
_REFUSALS_AT_ONCE = 16  # connections above the number allowed that are told so; any further one is just closed
_PIPELINED = 64  # requests sent ahead of their answers


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one server allows its connections: seconds, bytes and numbers."""

    head_bytes: int
    headers: int
    head_s: float
    body_silence_s: float
    connections: int
    backlog: int

    @classmethod
    def of(cls, settings: Settings) -> ConnectionLimits:
        """Those of the settings, with no more connections than this process may open files.

        Half of the files, 1024 at most, are left to the database, the object store and connections that come at once.
        """
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        spare = 1024 if files == resource.RLIM_INFINITY else min(1024, files // 2)
        return cls(
            head_bytes=settings.max_head_bytes,
            headers=settings.max_headers,
            head_s=settings.head_limit_s,
            body_silence_s=settings.silence_limit_s,
            connections=(
                settings.max_connections
                if files == resource.RLIM_INFINITY
                else min(settings.max_connections, max(1, files - spare))
            ),
            backlog=max(16, spare // 2),
        )


def bounded_protocol(limits: ConnectionLimits) -> type[BoundedProtocol]:
    """The protocol of one server, for ``uvicorn.Config(http=…)``."""
    return type("BoundedProtocol", (BoundedProtocol,), {"limits": limits, "_line": {}})


class _Refused(Exception):
    """Ends the parser's work; what to answer stands in the protocol."""


class _LastingTransport:
    """The transport as uvicorn's answers see it: where they close it, the client first reads what it was told."""

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol = protocol

    def write(self, data: bytes) -> None:
        self._protocol.transport.write(data)

    def is_closing(self) -> bool:
        return self._protocol.transport.is_closing()

    def close(self) -> None:
        self._protocol.close_behind_answer()


class BoundedProtocol(HttpToolsProtocol):
    """One connection. Make a class per server with ``bounded_protocol``."""

    limits: ClassVar[ConnectionLimits]
    _line: ClassVar[dict[BoundedProtocol, None]]  # connections without a request, the longest-waiting first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_fed = 0  # bytes of the head that is coming in
        self._in_head = True  # between requests, or within a head
        self._keeps_alive = True
        self._fed_beside_body = 0  # bytes since the head's end or the body's last byte: trailers, lengths of chunks
        self._refusal: OmniJobsError | None = None
        self._discarded: int | None = None  # bytes, once refused
        self._timer: asyncio.TimerHandle | None = None  # of the head, of a refused client, or of an unread body
        self._write_timer: asyncio.TimerHandle | None = None
        if len(self.connections) > self.limits.connections and not self._make_room():
            if len(self.connections) > self.limits.connections + _REFUSALS_AT_ONCE:
                transport.abort()
            else:
                limit = self.limits.connections
                self._refuse(ServerBusy(f"{limit} connections are open; no more may be (OMNI_JOBS_MAX_CONNECTIONS)"))
            return
        self._line[self] = None
        self._start_timer(self.limits.head_s, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._line.pop(self, None)
        self._stop_timer()
        self._stop_write_timer()
        super().connection_lost(exc)

    def _make_room(self) -> bool:
        """Close the connection that has been without a request the longest."""
        oldest = next(iter(self._line), None)
        if oldest is None:
            return False
        del self._line[oldest]
        oldest.transport.abort()
        return True

    # What comes in

    def data_received(self, data: bytes) -> None:
        if self._discarded is not None:
            self._discard(data)
            return
        start = 0
        while start < len(data) and self._discarded is None and not self.transport.is_closing():
            if not self._in_head:
                self._feed_body(data[start:] if start else data)
                break
            piece = data[start : start + _SLICE_BYTES]
            start += len(piece)
            self._head_fed += len(piece)
            super().data_received(piece)
            if self._in_head and self._head_fed > self.limits.head_bytes and self._discarded is None:
                self._refuse(HeadTooLarge(f"the request's head has more than {self.limits.head_bytes} bytes"))
        if self._in_head and self in self._line and self._timer is None and self._discarded is None:
            self._start_timer(self.limits.head_s, self._head_is_late)  # its first byte came

    def _feed_body(self, data: bytes) -> None:
        """Feed it to the parser, which keeps a trailer until it ends, however long it is."""
        self._fed_beside_body += len(data)
        super().data_received(data)
        if not self._in_head and self._fed_beside_body > self.limits.head_bytes and self._discarded is None:
            self._refuse(self._trailers_too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_done = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_done += len(name) + len(value) + 4
        if not self._in_head:  # a trailer: the request is on its way, and its headers are those of its head
            if self._head_done > self.limits.head_bytes:
                self._give_up(self._trailers_too_large())
            return
        super().on_header(name, value)
        if len(self.headers) > self.limits.headers:
            self._give_up(HeadTooLarge(f"the request's head has more than {self.limits.headers} headers"))
        if self._head_done > self.limits.head_bytes:
            self._give_up(HeadTooLarge(f"the request's head has more than {self.limits.head_bytes} bytes"))

    def on_headers_complete(self) -> None:
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            self._give_up(MalformedRequest("this server speaks HTTP/1.1"))
        if len(self.pipeline) >= _PIPELINED:
            self._give_up(MalformedRequest(f"more than {_PIPELINED} requests were sent ahead of their answers"))
        self._in_head = False
        self._head_fed = self._head_done = self._fed_beside_body = 0
        self._line.pop(self, None)
        self._stop_timer()
        super().on_headers_complete()
        self.cycle.transport = _LastingTransport(self)  # type: ignore[assignment]
        self._keeps_alive = self.cycle.keep_alive
        self.cycle.keep_alive = False  # an answer that does not wait for the body says that nothing comes after it

    def on_body(self, body: bytes) -> None:
        self._fed_beside_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._keeps_alive
        super().on_message_complete()
        self._in_head = True

    def shutdown(self) -> None:
        self._keeps_alive = False
        super().shutdown()

    def close_behind_answer(self) -> None:
        if not self._in_head:
            self._linger()
            return
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self._watch_reading()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if not self.cycle.response_complete:
            return  # one that was sent ahead is answered next
        if self._discarded is None:
            self._line[self] = None
            if self._head_fed:
                self._start_timer(self.limits.head_s, self._head_is_late)

    # Clients that stand still

    def _head_is_late(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._head_fed:
            self._refuse(TooSlow(f"the request's head did not come within {self.limits.head_s:g} s"))
        else:
            self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        if not self.transport.get_write_buffer_size():
            self.transport.close()
            return
        if self._write_timer is None:  # it reads its last answer still, or it does not
            self._watch_reading()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():  # else the rest of the last answer is watched
            self._stop_write_timer()

    def _watch_reading(self) -> None:
        self._stop_write_timer()
        self._write_timer = self.loop.call_later(self.limits.body_silence_s, self._reading_is_late, self._untaken())

    def _reading_is_late(self, untaken: int) -> None:
        self._write_timer = None
        if self._untaken() < untaken:  # slow, not silent
            self._watch_reading()
        else:
            self.transport.abort()

    def _untaken(self) -> int:
        """Bytes of answers that the client's host has not taken: ours, and the kernel's."""
        queued = bytearray(4)
        with suppress(OSError):
            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, queued)
        return self.transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)

    def _start_timer(self, seconds: float, then: Any) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, then)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing: an upgrade that is not offered is passed over, as HTTP allows."""

    # Refusing

    def _trailers_too_large(self) -> HeadTooLarge:
        return HeadTooLarge(f"more than {self.limits.head_bytes} bytes of trailers or chunk extensions came")

    def _give_up(self, error: OmniJobsError) -> None:
        """From within the parser, which ends its work and has ``send_400_response`` called."""
        self._refusal = error
        raise _Refused

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal or MalformedRequest())

    def _refuse(self, error: OmniJobsError) -> None:
        """Answer in place of the request in flight, if there is one; then read on for a moment, and close."""
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.response_started or self.pipeline:  # another answer is on its way already
                self.transport.abort()
                return
            self.cycle.disconnected = True  # what its route still says goes nowhere
            self.cycle.message_event.set()
        self.transport.write(_answer(error, self.server_state.default_headers))
        self._linger()

    def _linger(self) -> None:
        """Read and drop what the client still sends, for a moment, so that it can read its answer. Then close."""
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self._discarded = 0
        self._line.pop(self, None)
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._start_timer(_LINGER_S, self.transport.abort)

    def _discard(self, data: bytes) -> None:
        self._discarded = (self._discarded or 0) + len(data)
        if self._discarded > _LINGER_BYTES:
            self.transport.abort()


def _answer(error: OmniJobsError, default_headers: list[tuple[bytes, bytes]]) -> bytes:
    status = HTTPStatus(error.http_status)
    body = json.dumps({"error": error.to_dict()}).encode()
    headers = [
        *default_headers,
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        (b"connection", b"close"),
    ]
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append((b"retry-after", b"1"))
    lines = [b"HTTP/1.1 %d %s" % (status, status.phrase.encode()), *(b"%s: %s" % header for header in headers)]
    return b"\r\n".join([*lines, b"", body])
