"""Hooks into botocore, for two promises that its settings cannot give: whole answers, and calls that end in time.

A cut-off answer is an error, because botocore takes a head that ends anywhere, and a listing without its body for
an empty one. A ``CallLimit`` bounds a whole call with all its attempts, because botocore's ``read_timeout`` bounds
only the pause between two bytes: a server that sends one byte a second would hold a submit, a stage run or the
pruner for ever.

All use of botocore's private API is in this module.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from boto3.session import Session
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


class CallLimitReached(Exception):
    """Ends a call whose time is up, in place of another attempt. The store raises StorageUnavailable for it."""


class CallLimit:
    """Context manager: end the S3 calls made within it after ``seconds``, counted from each entry for all together.

    When the time is up, the connections in use are shut down. That wakes the thread that waits for them, and botocore
    makes no further attempt: the call raises botocore's own error or CallLimitReached. Only this thread's calls are
    bounded, and only those of clients with ``install_hooks``.
    """

    _timer: threading.Timer

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.is_reached = False
        self._sockets: set[socket.socket] = set()

    def __enter__(self) -> Self:
        self._timer = threading.Timer(self.seconds, self._reach)
        self._timer.daemon = True
        self._timer.start()
        _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        _current.set(None)

    def add(self, connected: socket.socket) -> None:
        """Add a connection to those that are shut down when the time is up; shut it down if that is now."""
        self._sockets.add(connected)
        if self.is_reached:
            self._reach()

    def _reach(self) -> None:
        self.is_reached = True
        for connected in tuple(self._sockets):
            with suppress(OSError):  # closed already
                # Not SSLSocket.shutdown, because two threads must not use one TLS session.
                socket.socket.shutdown(connected, socket.SHUT_RDWR)


_current: ContextVar[CallLimit | None] = ContextVar("call_limit", default=None)


def trusted_file(session: Session) -> str | None:
    """Return the file of authorities that botocore trusts: that of AWS_CA_BUNDLE, or of ``ca_bundle`` in AWS's files.

    None: those that come with botocore.
    """
    found = session._session.get_config_variable("ca_bundle")
    return found if isinstance(found, str) else None


def keys_file(session: Session) -> Path:
    """Return the file of which botocore reads keys: that of AWS_SHARED_CREDENTIALS_FILE, or the user's own."""
    return Path(str(session._session.get_config_variable("credentials_file"))).expanduser()


def install_hooks(client: S3Client) -> None:
    """Make an S3 client refuse cut-off answers and obey the ``CallLimit`` within which it is called, if any."""
    client.meta.events.register_first("before-send.s3", _refuse_when_reached)
    pools = client._endpoint.http_session._pool_classes_by_scheme  # type: ignore[attr-defined]
    pools.update(http=_Pool, https=_SecurePool)


def _refuse_when_reached(**_: Any) -> None:
    limit = _current.get()
    if limit is not None and limit.is_reached:
        raise CallLimitReached


class _Hooks:
    """The methods of a connection that differ from botocore's."""

    sock: socket.socket | None
    _connected: socket.socket | None = None  # ``sock`` is None while the last answer of a connection is read

    def connect(self) -> None:
        super().connect()  # type: ignore[misc]
        self._connected = self.sock
        self._add_to_limit()

    def request(self, *args: Any, **options: Any) -> Any:
        if self.sock is not None:  # otherwise ``connect`` follows
            self._add_to_limit()
        return super().request(*args, **options)  # type: ignore[misc]

    def getresponse(self) -> HTTPResponse:
        """Return urllib3's response. Raise ProtocolError for one of unknown length: its head was cut off."""
        response: HTTPResponse = super().getresponse()  # type: ignore[misc]
        response.enforce_content_length = True
        if response.length_remaining is None and not response.chunked:
            response.close()
            raise ProtocolError("the answer does not say how long it is")
        return response

    def _consume_headers(self, fp: IO[bytes]) -> None:
        """Read the rest of ``100 Continue``; botocore's own method never returns when the connection ends in it."""
        while (line := fp.readline()) != b"\r\n":
            if not line:
                raise ConnectionResetError("the connection ended within 100 Continue")

    def _add_to_limit(self) -> None:
        # An HTTPS proxy's TLS within TLS is no socket; botocore's timeouts alone bound it.
        limit = _current.get()
        if limit is not None and isinstance(self._connected, socket.socket):
            limit.add(self._connected)


class _Connection(_Hooks, AWSHTTPConnection):  # type: ignore[misc]
    pass


class _SecureConnection(_Hooks, AWSHTTPSConnection):  # type: ignore[misc]
    pass


class _Pool(AWSHTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(AWSHTTPSConnectionPool):
    ConnectionCls = _SecureConnection
