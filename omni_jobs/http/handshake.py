"""``Tls``: the handshakes of the API server's own TLS, within its limits, and its certificate, read anew when renewed.

uvicorn knows a connection once its handshake has ended, so a client that never ends it would be in no count and have
a minute. Here a connection has one of the server's places from its first moment, and ``head_limit_s`` for the
handshake. ``Places`` may close it to make room, as any connection without a request.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from omni_jobs.errors import ConfigError
from omni_jobs.http.places import Places
from omni_jobs.http.protocol import BoundedProtocol
from omni_jobs.http.request_parameters import network_of
from omni_jobs.settings import Settings

logger = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 10.0
_GOODBYE_S: Final = 2.0  # for the client's end of TLS, once the server has closed the connection
T = TypeVar("T")
_State = tuple[tuple[int, int, int], ...]


class Tls:
    """The server's certificate and key, and the context of TLS that presents them. For one event loop."""

    def __init__(self, certificate: Path, key: Path | None) -> None:
        """``certificate``: with those of the authorities between; ``key``: None if it stands in the same file.

        Raises ConfigError, which names the setting, for files that cannot be read or do not belong together.
        """
        self._files = (certificate, key or certificate)
        self._state = self._look()
        self.context = self._loaded(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))

    def _look(self) -> _State:
        try:
            found = [path.stat() for path in self._files]
        except OSError as error:
            field = "tls_certificate" if error.filename == str(self._files[0]) else "tls_key"
            raise ConfigError(f"{error.filename} cannot be read: {error.strerror}", field=_variable(field)) from None
        return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in found)

    def _loaded(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """Let a context present what stands in the files. A key with a passphrase is refused: nobody types one."""
        try:
            context.load_cert_chain(*self._files, password=_no_passphrase)
        except ConfigError:
            raise
        except ssl.SSLError as error:
            both = f"{self._files[0]} and {self._files[1]}"
            why = (error.reason or str(error)).replace("_", " ").lower()
            raise ConfigError(
                f"{both} are no certificate and its key in PEM: {why}", field=_variable("tls_certificate")
            ) from None
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}", field=_variable("tls_key")) from None
        return context

    def renew(self) -> bool:
        """Present what stands in the files if they have changed, and return whether they had.

        New connections get it; those that are open go on. What cannot be used is logged, and the certificate stays.
        """
        try:
            state = self._look()
            if state == self._state:
                return False
            # Tried on a context of its own first: a key that does not fit would spoil the one that serves.
            self._loaded(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
            self._loaded(self.context)
        except ConfigError as error:
            logger.error("the certificate stays the one before: %s", error)
            return False
        self._state = state
        logger.info("the certificate in %s is presented from now on", self._files[0])
        return True

    async def keep_renewed(self) -> None:
        """Look every ten seconds whether the files have changed."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            self.renew()

    def before(self, protocol: type[BoundedProtocol]) -> Callable[..., asyncio.Protocol]:
        """Return what makes the protocol of a new connection, which ends its handshake and then is ``protocol``."""

        def begin(**options: Any) -> Handshake:
            return Handshake(self.context, lambda: protocol(**options), protocol.places, protocol.settings, options)

        return begin


class Handshake(asyncio.Protocol):
    """One connection until its handshake has ended, in a place of the server's, where it counts as idle."""

    tenant: str | None = None
    in_place_of: str | None = None
    has_left = False
    when_left: Callable[[], object] | None = None

    def __init__(
        self,
        context: ssl.SSLContext,
        then: Callable[[], BoundedProtocol],
        places: Places,
        settings: Settings,
        options: dict[str, Any],
    ) -> None:
        """``then`` makes the protocol that follows; ``options``: those of uvicorn's protocols."""
        self._context = context
        self._then = then
        self._places = places
        self._limit_s = settings.head_limit_s
        self._server_state = options["server_state"]
        self._early = bytearray()  # what the client has sent behind its handshake
        self._has_ended = False  # the client sends no more

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        if not self._places.enter(self):
            transport.abort()
            return
        self._server_state.connections.add(self)
        loop = asyncio.get_running_loop()
        securing = loop.start_tls(
            transport,
            self,
            self._context,
            server_side=True,
            ssl_handshake_timeout=self._limit_s,
            ssl_shutdown_timeout=_GOODBYE_S,
        )
        # It begins here and not in a task, because uvloop reads as soon as this returns: TLS must get the first bytes.
        waits_for = securing.send(None)
        rest = cast("Awaitable[asyncio.Transport | None]", _continued(securing, waits_for))
        self._task = loop.create_task(self._shake_hands(transport, rest))

    async def _shake_hands(self, transport: asyncio.Transport, securing: Awaitable[asyncio.Transport | None]) -> None:
        secured: asyncio.Transport | None = None
        try:
            secured = await securing
        except (OSError, RuntimeError) as error:  # the client does not trust the certificate, is too slow or has left
            logger.debug("no handshake of TLS: %s", error)
        finally:
            self._places.leave(self)
            self._server_state.connections.discard(self)
            if secured is None:
                transport.abort()
        if secured is None or secured.is_closing():
            return
        protocol = self._then()
        protocol.below = transport
        secured.set_protocol(protocol)
        protocol.connection_made(secured)
        if self._early:
            protocol.data_received(bytes(self._early))
        if self._has_ended:
            protocol.eof_received()

    def data_received(self, data: bytes) -> None:
        self._early += data

    def eof_received(self) -> None:
        self._has_ended = True

    def shutdown(self) -> None:
        """Close the connection, because the server stops. uvicorn calls it."""
        self.close()

    # What ``Places`` asks.

    @property
    def holder(self) -> str:
        """The client's network."""
        peer = self.transport.get_extra_info("peername")
        return network_of(peer[0] if isinstance(peer, tuple) else "")

    def is_slow(self) -> bool:
        """Return False: it has no request."""
        return False

    def close(self) -> None:
        """Close the connection, which has no request."""
        self.transport.abort()

    def break_off(self) -> None:
        """Close the connection."""
        self.close()

    def end_request(self) -> None:
        """Close the connection."""
        self.close()


@types.coroutine
def _continued(begun: Coroutine[Any, Any, T], waits_for: object) -> Generator[Any, Any, T]:
    """Return the result of a coroutine that has begun, and waits for what it has given."""
    while True:
        try:
            got = yield waits_for
        except BaseException as error:  # noqa: BLE001 — the coroutine's to handle
            step = partial(begun.throw, error)
        else:
            step = partial(begun.send, got)
        try:
            waits_for = step()
        except StopIteration as end:
            return cast(T, end.value)


def _variable(field: str) -> str:
    return f"OMNI_JOBS_{field.upper()}"


def _no_passphrase() -> str:
    raise ConfigError(
        "has a passphrase; give a key without one, which only this user can read", field=_variable("tls_key")
    )
