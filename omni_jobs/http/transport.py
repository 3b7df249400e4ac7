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
        return _shortest(host[1:].partition("]")[0])
    if host.count(":") > 1:  # an IPv6 address without brackets, from the settings
        return _shortest(host)
    return host.partition(":")[0].rstrip(".")


def _shortest(address: str) -> str:
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return address


def is_address(name: str) -> bool:
    """Return whether a host's name is an IP address."""
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


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
        return not (is_local_name(name) or (is_address(name) and ipaddress.ip_address(name).is_loopback))


def _name_of(scope: Scope) -> str:
    return host_name(Headers(scope=scope).get("host", "").strip())
