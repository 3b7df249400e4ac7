"""A proxy that passes TCP on to a service and does to it what networks and servers do.

Put it between a client and any service; give the client ``proxy.url`` or ``proxy.port``:

    with FaultProxy(seaweedfs.endpoint_url, http=True) as proxy:
        settings = settings.model_copy(update={"s3_endpoint_url": proxy.url})
        proxy.set(Fault(answer_bytes_per_s=1))     # from now on, old connections as well
        ...
        with proxy.fault(status=503, times=2):      # two requests are answered so, the next go through
            ...
        proxy.clear()                               # all is well again

A fault acts from the moment it is set until it is cleared or another is set; ``times``
ends those that strike single requests earlier. ``proxy.struck`` counts the strikes of
the current fault. Bytes count per connection, from the moment the fault is set.

``http=True`` makes every request one connection (it adds ``Connection: close``), so that
the proxy knows where a request begins and an answer's body lies; ``status`` and
``flip_at`` need it. Without it the bytes are not looked at, and Valkey or PostgreSQL
may be behind the proxy: ``Fault(cut_when_sent=b"COMMIT")`` lets the statement through
and cuts the connection before its answer.

A service that is down looks like a connection that is reset. ``Fault(hang=True)``
passes nothing on in either direction, and everything once it is over: a partition that
heals.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

__all__ = ["Fault", "FaultProxy"]

_PIECE: Final = 65_536
_HEAD_LIMIT: Final = 1 << 20
_END_OF_HEAD: Final = b"\r\n\r\n"
_TICK_S: Final = 0.05  # of a drip


@dataclass(frozen=True, slots=True)
class Fault:
    """What befalls connections; several at once add up. The default: nothing.

    refuse              new connections are refused, old ones cut
    hang                nothing passes in either direction until the fault is over
    delay_s             an answer begins so much later
    request_bytes_per_s, answer_bytes_per_s  so slow; below 20, single bytes
    cut_request_after, cut_answer_after      the connection is cut after so many bytes of its request or answer
    cut_when_sent       the connection is cut once the client has sent these bytes: they arrive, the answer does not
    reset               a cut is a TCP reset instead of an orderly end
    status, code        HTTP: requests are answered with an S3 error and do not reach the service
    method              a status strikes the requests of this method alone
    flip_at             HTTP: a bit of this byte of the answer's body is flipped
    times               a cut, status or flip strikes so many times; None: until cleared
    """

    refuse: bool = False
    hang: bool = False
    delay_s: float = 0.0
    request_bytes_per_s: float | None = None
    answer_bytes_per_s: float | None = None
    cut_request_after: int | None = None
    cut_answer_after: int | None = None
    cut_when_sent: bytes | None = None
    reset: bool = False
    status: int | None = None
    method: bytes | None = None
    code: str = "InternalError"
    flip_at: int | None = None
    times: int | None = None


_NONE: Final = Fault()


class FaultProxy:
    """Between clients and ``target`` (``host:port`` or a URL); the methods may be called from any thread."""

    def __init__(self, target: str, *, http: bool = False) -> None:
        url = urlsplit(target if "//" in target else f"//{target}")
        if url.hostname is None or url.port is None:
            raise ValueError(f"{target!r} names no host and port")
        self._target = (url.hostname, url.port)
        self._http = http
        self._state = threading.Condition()
        self._fault = _NONE
        self._number = 0  # of the current fault
        self._struck = 0
        self._closed = False
        self._links: set[_Link] = set()
        self._listener = _bound(0)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{url.scheme or 'tcp'}://127.0.0.1:{self.port}"
        self._listen()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def set(self, fault: Fault) -> None:
        """From now on this fault, and no other."""
        with self._state:
            refused = self._fault.refuse
            self._fault = fault
            self._number += 1
            self._struck = 0
            self._state.notify_all()
        if fault.refuse and not refused:
            _close(self._listener)
            self._listener = _bound(self.port)  # bound and not listening: refused, and nobody else takes it
            self.cut_all()
        elif refused and not fault.refuse:
            self._listen()

    def clear(self) -> None:
        """All is well again."""
        self.set(_NONE)

    @contextmanager
    def fault(self, **parts: Any) -> Iterator[FaultProxy]:
        """A fault for a while: ``with proxy.fault(status=503): …``"""
        self.set(Fault(**parts))
        try:
            yield self
        finally:
            self.clear()

    def cut_all(self) -> None:
        """Reset every connection there is."""
        with self._state:
            links = list(self._links)
        for link in links:
            link.cut(reset=True)

    @property
    def struck(self) -> int:
        """How often the current fault has cut, answered or flipped."""
        with self._state:
            return self._struck

    @property
    def connections(self) -> int:
        """How many are open."""
        with self._state:
            return len(self._links)

    def close(self) -> None:
        """Refuse everything from now on, and let go of the port."""
        with self._state:
            self._closed = True
            self._state.notify_all()
        _close(self._listener)
        self.cut_all()

    # What its connections ask

    def current(self) -> tuple[int, Fault]:
        """The fault that acts now, and its number; none once it has struck often enough."""
        with self._state:
            over = self._fault.times is not None and self._struck >= self._fault.times
            return self._number, _NONE if over else self._fault

    def strike(self, number: int) -> bool:
        """Whether fault ``number`` may strike once more; counted if so."""
        with self._state:
            times = self._fault.times
            if number != self._number or (times is not None and self._struck >= times):
                return False
            self._struck += 1
            return True

    def pause(self, seconds: float | None, number: int) -> None:
        """Wait so long, or until fault ``number`` is over; None: only for that."""
        with self._state:
            self._state.wait_for(lambda: self._closed or self._number != number, seconds)

    def gone(self, link: _Link) -> None:
        with self._state:
            self._links.discard(link)

    # Connections

    def _listen(self) -> None:
        self._listener.listen(256)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        try:
            service = socket.create_connection(self._target, timeout=10)
        except OSError:
            _close(client, reset=True)
            return
        service.settimeout(None)
        for each in (client, service):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = _Link(self, client, service, http=self._http)
        with self._state:
            unwanted = self._closed or self._fault.refuse
            if not unwanted:
                self._links.add(link)
        if unwanted:
            link.cut(reset=True)
        else:
            link.start()


class _Link:
    """One client's connection and the one to the service that stands for it."""

    def __init__(self, proxy: FaultProxy, client: socket.socket, service: socket.socket, *, http: bool) -> None:
        self._proxy = proxy
        self._client = client
        self._service = service
        self._http = http
        self._asked = threading.Event()  # something was sent that no answer has followed
        self._mute = False
        self._over = threading.Event()

    def start(self) -> None:
        for name in (self._pass_requests, self._pass_answers):
            threading.Thread(target=self._guarded, args=(name,), daemon=True).start()

    def cut(self, *, reset: bool = False) -> None:
        self._over.set()
        _close(self._client, reset=reset)
        _close(self._service, reset=reset)
        self._proxy.gone(self)

    def _guarded(self, pass_on: Any) -> None:
        try:
            pass_on()
        except OSError:
            pass  # one side is gone: so is the other, below
        finally:
            self.cut()

    def _pass_requests(self) -> None:
        counted = _Counted()
        tail = b""
        first = b""
        if self._http:
            first = self._request_head()
            if not first:
                return
        while data := first or self._client.recv(_PIECE):
            first = b""
            fault, number = self._fault()
            counted.at(number)
            if fault.cut_when_sent is not None:
                found = fault.cut_when_sent in tail + data
                tail = (tail + data)[-len(fault.cut_when_sent) :]
                if found and self._proxy.strike(number):
                    self._mute = True
                    self._service.sendall(data)
                    time.sleep(_TICK_S)  # it shall arrive, and be obeyed
                    self.cut(reset=fault.reset)
                    return
            self._asked.set()
            if self._send(self._service, data, fault, number, counted, fault.cut_request_after, "request"):
                return

    def _pass_answers(self) -> None:
        counted = _Counted()
        body = _Body() if self._http else None
        while data := self._service.recv(_PIECE):
            fault, number = self._fault()
            counted.at(number)
            if self._mute:
                continue
            if self._asked.is_set():
                self._asked.clear()
                if fault.delay_s:
                    self._proxy.pause(fault.delay_s, number)
            if body is not None:
                data = self._flipped(data, body, fault, number)
            if self._send(self._client, data, fault, number, counted, fault.cut_answer_after, "answer"):
                return
        with suppress(OSError):
            self._client.shutdown(socket.SHUT_WR)

    def _fault(self) -> tuple[Fault, int]:
        """The current fault; waits while it hangs."""
        while True:
            number, fault = self._proxy.current()
            if not fault.hang or self._over.is_set():
                return fault, number
            self._proxy.pause(None, number)

    def _send(
        self,
        target: socket.socket,
        data: bytes,
        fault: Fault,
        number: int,
        counted: _Counted,
        cut_after: int | None,
        what: str,
    ) -> bool:
        """Pass a piece on, as slowly as the fault says; whether it cut the connection instead."""
        if cut_after is not None and counted.bytes + len(data) >= cut_after and self._proxy.strike(number):
            target.sendall(data[: max(0, cut_after - counted.bytes)])
            self.cut(reset=fault.reset)
            return True
        counted.bytes += len(data)
        rate = fault.request_bytes_per_s if what == "request" else fault.answer_bytes_per_s
        while rate is not None and data:
            size = max(1, int(rate * _TICK_S))
            target.sendall(data[:size])
            data = data[size:]
            self._proxy.pause(size / rate, number)
            if self._proxy.current()[0] != number:
                break
        target.sendall(data)
        return False

    # HTTP

    def _request_head(self) -> bytes:
        """The beginning of the request, with its head changed; b"" when it was answered here."""
        data = b""
        while _END_OF_HEAD not in data:
            piece = self._client.recv(_PIECE)
            if not piece or len(data) > _HEAD_LIMIT:
                return b""
            data += piece
        head, _, rest = data.partition(_END_OF_HEAD)
        fault, number = self._fault()
        is_meant = fault.method is None or head.startswith(fault.method + b" ")
        if fault.status is not None and is_meant and self._proxy.strike(number):
            self._answer(head, rest, fault)
            return b""
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
        return b"\r\n".join([*lines, b"Connection: close"]) + _END_OF_HEAD + rest

    def _answer(self, head: bytes, rest: bytes, fault: Fault) -> None:
        """Answer with an error of S3. A body that is on its way is read first, or it would reset the connection."""
        method, _, _ = head.partition(b" ")
        headers = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
        left = int(headers.get(b"content-length", b"0")) - len(rest)
        while left > 0 and b"expect" not in headers:
            left -= len(self._client.recv(min(left, _PIECE))) or left
        text = f"<Error><Code>{fault.code}</Code><Message>injected</Message></Error>".encode()
        lines = (
            f"HTTP/1.1 {fault.status} Injected",
            "Content-Type: application/xml",
            f"Content-Length: {len(text)}",
            "Connection: close",
        )
        self._client.sendall("\r\n".join(lines).encode() + _END_OF_HEAD + (b"" if method == b"HEAD" else text))

    def _flipped(self, data: bytes, body: _Body, fault: Fault, number: int) -> bytes:
        at = body.position_in(data, fault.flip_at)
        if at is None or not self._proxy.strike(number):
            return data
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


class _Counted:
    """The bytes of one direction since the current fault was set."""

    def __init__(self) -> None:
        self.bytes = 0
        self._number = -1

    def at(self, number: int) -> None:
        if number != self._number:
            self.bytes, self._number = 0, number


class _Body:
    """Where the body of the connection's one answer lies; it ends with the connection."""

    def __init__(self) -> None:
        self._head = b""
        self._in_body = False
        self._passed = 0

    def position_in(self, data: bytes, wanted: int | None) -> int | None:
        """Where in the next piece the body's byte ``wanted`` is; None: not there."""
        start = 0
        while not self._in_body:
            known = len(self._head)
            self._head += data[start:]
            end = self._head.find(_END_OF_HEAD)
            if end < 0:
                return None
            start += end + len(_END_OF_HEAD) - known
            interim = self._head.split(b" ", 2)[1].startswith(b"1")  # 100 Continue: the answer is still to come
            self._head = b""
            self._in_body = not interim
        size = len(data) - start
        at = None if wanted is None else wanted - self._passed
        self._passed += size
        return start + at if at is not None and 0 <= at < size else None


def _bound(port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    return made


def _close(each: socket.socket, *, reset: bool = False) -> None:
    with suppress(OSError):
        if reset:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            each.shutdown(socket.SHUT_RDWR)
    if reset:  # a thread that waits for it wakes up; SHUT_WR would send an orderly end first
        with suppress(OSError):
            each.shutdown(socket.SHUT_RD)
    each.close()
