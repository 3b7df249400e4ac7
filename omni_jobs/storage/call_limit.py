"""A time limit on a whole call of boto3, with all its attempts.

boto3's ``read_timeout`` is about the pause between two bytes: a server that sends one
byte a second holds a call for ever. A ``CallLimit`` counts the time of everything done
within it. When it is used up, the connections of the call are shut down, which wakes
whoever waits on them, and boto3 sends no further attempt. One thread per process
watches all calls. The connections made here also refuse answers that are cut off.

What is not botocore's documented API is used in ``limit_calls`` and ``_Watched`` only.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, Final, Self

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)
from urllib3 import HTTPResponse
from urllib3.exceptions import ProtocolError

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

__all__ = ["CallLimit", "LimitReached", "limit_calls"]

_LOOK_EVERY_S: Final = 0.2


class LimitReached(Exception):
    """Raised in place of another attempt; never leaves the store."""


class CallLimit:
    """So many seconds for what is done within ``with limit:``, which may be entered several times.

    Between two entries the time does not count: a download waits for its reader.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._left = seconds
        self._entered_at = 0.0
        self._outer: CallLimit | None = None
        self._wires: set[socket.socket] = set()

    def __enter__(self) -> Self:
        self._outer = getattr(_here, "limit", None)
        _here.limit = self
        self._entered_at = time.monotonic()
        _watch.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        _watch.remove(self)
        self._left -= time.monotonic() - self._entered_at
        self._entered_at = 0.0
        _here.limit = self._outer

    @property
    def is_reached(self) -> bool:
        spent = time.monotonic() - self._entered_at if self._entered_at else 0.0
        return spent >= self._left

    def uses(self, wire: socket.socket) -> None:
        """The call talks over this connection."""
        with _watch.lock:
            self._wires.add(wire)

    def cut(self) -> None:
        """Wake up who waits on the call's connections. They may be shut down already."""
        for wire in self._wires:
            with suppress(OSError):
                # Not TLS' own shutdown, which is not for two threads: its reader then finds the end of TCP.
                socket.socket.shutdown(wire, socket.SHUT_RDWR)


class _Watch:
    """The thread that looks after the limits of calls under way; it sleeps while there are none."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self._limits: set[CallLimit] = set()
        self._thread: threading.Thread | None = None

    def add(self, limit: CallLimit) -> None:
        with self.lock:
            self._limits.add(limit)
            if self._thread is None or not self._thread.is_alive():  # the first, or in a forked child
                self._thread = threading.Thread(target=self._run, name="s3-call-limits", daemon=True)
                self._thread.start()
            elif len(self._limits) == 1:
                self.lock.notify_all()

    def remove(self, limit: CallLimit) -> None:
        """Once it returns the limit's connections are left alone: they may serve another call."""
        with self.lock:
            self._limits.discard(limit)

    def _run(self) -> None:
        with self.lock:
            while True:
                for limit in self._limits:
                    if limit.is_reached:
                        limit.cut()
                self.lock.wait(_LOOK_EVERY_S if self._limits else None)


_here = threading.local()
_watch: Final = _Watch()


def limit_calls(client: S3Client) -> None:
    """Make the client's calls obey the limit they are made within, if any."""
    client.meta.events.register_first("before-send.s3", _refuse_when_reached)
    # One dict for all of the session's pools, those of HTTP proxies as well.
    pools = client._endpoint.http_session._pool_classes_by_scheme  # type: ignore[attr-defined]
    pools.update(http=_Pool, https=_SecurePool)


def _refuse_when_reached(**_: Any) -> None:
    limit: CallLimit | None = getattr(_here, "limit", None)
    if limit is not None and limit.is_reached:
        raise LimitReached


class _Watched:
    """A connection that tells the limit it is used within of its socket, and that knows a whole answer from a part."""

    sock: socket.socket | None
    _wire: socket.socket | None = None

    def connect(self) -> None:
        super().connect()  # type: ignore[misc]
        self._wire = self.sock  # ``sock`` is None again while the last answer of a connection is read
        self._tell()

    def request(self, *args: Any, **options: Any) -> Any:
        if self.sock is not None:  # else ``connect`` is still to come
            self._tell()
        return super().request(*args, **options)  # type: ignore[misc]

    def getresponse(self) -> HTTPResponse:
        """As urllib3's, but an answer whose head or body was cut off is an error.

        boto3 takes a head that ends anywhere, and a listing without its body for an empty one.
        """
        response: HTTPResponse = super().getresponse()  # type: ignore[misc]
        response.enforce_content_length = True
        if response.length_remaining is None and not response.chunked:
            response.close()
            raise ProtocolError("the answer does not say how long it is")
        return response

    def _consume_headers(self, fp: IO[bytes]) -> None:
        """The rest of a ``100 Continue``. botocore's own never returns when the connection ends within it."""
        while (line := fp.readline()) != b"\r\n":
            if not line:
                raise ConnectionResetError("the connection ended within 100 Continue")

    def _tell(self) -> None:
        limit: CallLimit | None = getattr(_here, "limit", None)
        if limit is not None and isinstance(self._wire, socket.socket):  # not TLS within TLS, of some proxies
            limit.uses(self._wire)


class _Connection(_Watched, AWSHTTPConnection):  # type: ignore[misc]
    pass


class _SecureConnection(_Watched, AWSHTTPSConnection):  # type: ignore[misc]
    pass


class _Pool(AWSHTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(AWSHTTPSConnectionPool):
    ConnectionCls = _SecureConnection
