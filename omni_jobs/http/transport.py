"""How browsers reach this server: by which names, and by https or not.

The server itself speaks plain HTTP. What a proxy with TLS in front of it does is said by the setting ``public_url``, or
by the header ``X-Forwarded-Proto`` of one of the ``trusted_proxies``, and is never guessed.
"""

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from omni_jobs.settings import Settings


def host_name(host: str) -> str:
    """Return the name of a host without its port, in small letters, or its address as browsers write it."""
    host = host.lower().rstrip(".")
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") < 2:  # an IPv6 address without brackets comes from the settings
        return host.partition(":")[0].rstrip(".")
    return str(address_of(host) or host)


def address_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a host's name is, None if it is no address."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def is_local_name(name: str) -> bool:
    """Return whether a host's name is one that browsers look for on their own machine, and nowhere else."""
    return name == "localhost" or name.endswith(".localhost")


class Transport:
    """Says of a request whether a browser sends it by https, and whether cookies are for https alone."""

    def __init__(self, settings: Settings) -> None:
        parts = None if settings.public_url is None else urlsplit(settings.public_url)
        self._public_scheme = None if parts is None else parts.scheme
        self.public_name = None if parts is None else host_name(parts.hostname or "")

    def is_https(self, scope: Scope) -> bool:
        """Return whether a request came by https: as the public URL says for its host, else as trusted proxies say."""
        if self._public_scheme is not None and _name_of(scope) == self.public_name:
            return self._public_scheme == "https"
        return bool(scope["scheme"] == "https")

    def needs_https(self, scope: Scope) -> bool:
        """Return whether a cookie for a request's host may travel by https alone.

        So it is but for two hosts: the browser's own machine, if no proxy says that https is spoken there, and the one
        of a public URL with http.
        """
        if self.is_https(scope):
            return True
        name = _name_of(scope)
        if self._public_scheme == "http" and name == self.public_name:
            return False
        address = address_of(name)
        return not (is_local_name(name) or (address is not None and address.is_loopback))


def _name_of(scope: Scope) -> str:
    return host_name(Headers(scope=scope).get("host", "").strip())
