"""``Resolver``: a name's addresses, by the resolver of this machine, on threads of its own.

A resolver that hangs keeps its thread for as long as the system lets it. So the threads have a bound, and no other work
waits for one.
"""

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Final, Protocol

from omni_jobs.fetch.addresses import Address
from omni_jobs.fetch.failures import Blame, FetchFailed

_THREADS: Final = 64  # started as they are needed; a look-up that hangs outlives its fetch
_TEMPORARY: Final = (socket.EAI_AGAIN, socket.EAI_MEMORY, socket.EAI_SYSTEM)


class Resolver(Protocol):
    """Finds the addresses of names."""

    async def addresses(self, host: str, port: int) -> Sequence[Address]:
        """Return the addresses of a name, the best first; none if it has none.

        Raises FetchFailed where they cannot be found just now.
        """

    def close(self) -> None:
        """End its threads, once they are done."""


class SystemResolver:
    """Asks this machine's resolver. Implements ``Resolver``; for one event loop at a time."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="resolver")

    async def addresses(self, host: str, port: int) -> Sequence[Address]:
        """Return the addresses of a name, in the order in which they should be tried."""
        look_up = asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        try:
            found = await look_up
        except socket.gaierror as error:
            if error.errno in _TEMPORARY:
                raise FetchFailed("the URL's host could not be looked up", Blame.HOST) from None
            return ()
        except UnicodeError:  # a label that is too long
            return ()
        return tuple(dict.fromkeys(ip_address(str(place[0])) for *_, place in found))

    def close(self) -> None:
        """End the threads, once they are done."""
        self._threads.shutdown(wait=False, cancel_futures=True)
