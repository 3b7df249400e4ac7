"""``PinnedBackend``: opens the connection of one exchange, to addresses that were checked, whatever name it is for.

httpcore2 asks it for a connection to a host by name, and verifies that name in the certificate. The name is never
looked up again, so a resolver that gives another answer the second time changes nothing.
"""

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Final, Self

import httpcore2

from omni_jobs.fetch.polite_backend import PoliteBackend

_TRIED: Final = 3  # addresses of a name
_CONNECT_S: Final = 5.0  # to each of them


class PinnedBackend(httpcore2.AsyncNetworkBackend):
    """Connects to ``addresses`` alone, the first that answers. A context, whose end closes what it has opened."""

    def __init__(self) -> None:
        self.addresses: Sequence[str] = ()
        self._backend = PoliteBackend()
        self._opened: list[httpcore2.AsyncNetworkStream] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in self._opened:
            await stream.aclose()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Open a connection to one of the addresses. Raises ConnectError or ConnectTimeout of the last one tried."""
        failure: Exception = httpcore2.ConnectError("no address was checked")
        for address in self.addresses[:_TRIED]:
            try:
                stream = await self._backend.connect_tcp(address, port, timeout=_CONNECT_S)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
            else:
                self._opened.append(stream)
                return stream
        raise failure

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None
    ) -> httpcore2.AsyncNetworkStream:
        """Open nothing: no link leads to a file."""
        raise httpcore2.ConnectError("no link leads to a file")
