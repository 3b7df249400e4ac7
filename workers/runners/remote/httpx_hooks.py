"""The one use of httpx2's private names: its connections are read in pieces that keep the event loop free.

httpx2 takes no network backend, which httpcore2 does.
"""

import httpx2

from omni_jobs.fetch.polite_backend import PoliteBackend


def read_politely(client: httpx2.AsyncClient) -> None:
    """Make a new client, which has no connections yet, give way between reads."""
    for transport in (client._transport, *client._mounts.values()):
        if isinstance(transport, httpx2.AsyncHTTPTransport):
            transport._pool._network_backend = PoliteBackend()
