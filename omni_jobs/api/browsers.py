"""What keeps pages of other sites out: the host a request names, the origin it comes from, and what answers carry.

A browser sends requests to this server on behalf of whatever page is open in it. Pages of other origins may not
change anything: browsers tell the origin, and who it is has to be this server. A page whose own name is pointed at
this server's address (DNS rebinding) has that name in ``Host``: only known names are served. An address as ``Host``
is served always, because nobody can point an address elsewhere.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omni_jobs.api.error_answers import answer_to
from omni_jobs.errors import ForeignOrigin, MalformedRequest, OmniJobsError, UnknownHost
from omni_jobs.settings import Settings

__all__ = ["KnownPages"]

_SAFE = ("GET", "HEAD", "OPTIONS")
_DEFAULTS = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))


class KnownPages:
    """Middleware: refuses hosts that are not this server's and changes by other origins; guards every answer."""

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        self._app = app
        self._names = {_bare(name) for name in (*settings.allowed_hosts, settings.api_host)}
        self._any = "*" in self._names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"] = list(message.get("headers", ()))
                there = {name.lower() for name, _ in headers}
                headers += [header for header in _DEFAULTS if header[0] not in there]
            await send(message)

        try:
            headers = Headers(scope=scope)
            host = self._check_host(headers, scope["http_version"])
            if scope["method"] not in _SAFE:
                _check_origin(headers, host)
        except OmniJobsError as error:
            await answer_to(error)(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)

    def _check_host(self, headers: Headers, http_version: str) -> str:
        """The host with its port. Raises UnknownHost, MalformedRequest."""
        found = headers.getlist("host")
        if len(found) > 1 or (not found and http_version != "1.0"):  # HTTP/1.0, which no browser speaks, has none
            raise MalformedRequest("a request names one host", field="Host")
        host = found[0].strip().lower() if found else ""
        if found and not self._any and not self._is_known(_bare(host)):
            raise UnknownHost(
                f"this server is not called {_bare(host)!r:.100}: the setting OMNI_JOBS_ALLOWED_HOSTS names its hosts",
                field="Host",
            )
        return host

    def _is_known(self, name: str) -> bool:
        return name in self._names or name == "localhost" or name.endswith(".localhost") or _is_address(name)


def _check_origin(headers: Headers, host: str) -> None:
    """Raises ForeignOrigin unless the sender is no page, or one of this server's own."""
    site = headers.get("sec-fetch-site")
    if site is not None:  # every browser since 2023 tells it, to https and to loopback addresses
        if site not in ("same-origin", "none"):
            raise ForeignOrigin(field="Sec-Fetch-Site")
        return
    origin = headers.get("origin")
    if origin is not None and _authority(origin) != _without_usual_port(host):
        raise ForeignOrigin(f"a page of {origin!r:.100} may not do this", field="Origin")


def _bare(host: str) -> str:
    """The name or address alone, in small letters."""
    host = host.lower().rstrip(".")
    if host.startswith("["):
        return host[1:].partition("]")[0]
    if host.count(":") > 1:  # an IPv6 address of the settings
        return host
    return host.partition(":")[0].rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _authority(origin: str) -> str | None:
    try:
        return _without_usual_port(urlsplit(origin.lower()).netloc) or None  # "null" has none
    except ValueError:
        return None


def _without_usual_port(authority: str) -> str:
    """A proxy in front may speak https where this server hears http: both ports are as good as none."""
    return authority.removesuffix(":80").removesuffix(":443")
