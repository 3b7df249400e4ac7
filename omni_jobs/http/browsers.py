"""``KnownPages``: keeps pages of other sites out, by the host that a request names and the origin that it comes from.

A browser sends requests to this server for any page that is open in it. It names the page's origin, and only pages of
this server may change anything. An attacker may also point a name of his own at this server's address (DNS rebinding).
Then the header ``Host`` has that name, so only known names are served. An address as ``Host`` is always served, because
nobody can point an address elsewhere.
"""

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omni_jobs.errors import ForeignOrigin, MalformedRequest, OmniJobsError, UnknownHost
from omni_jobs.http.error_answers import DEFAULT_HEADERS, answer_to
from omni_jobs.http.transport import Transport, address_of, host_name, is_local_name
from omni_jobs.settings import Settings

SHOWN_TYPES = frozenset(
    {
        *("audio/wav", "audio/flac", "audio/mpeg", "audio/ogg", "audio/aac"),
        *("image/png", "image/jpeg", "image/webp"),
        *("video/mp4", "video/webm"),
    }
)
"""The media types that a browser may show, because nothing in them runs. Others leave as bytes to be saved."""
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_ONLY_HTTPS = "max-age=31536000"  # s. Of this host alone: who runs the domain decides on its other hosts


class KnownPages:
    """Middleware that refuses requests to unknown hosts (421; 400 without one), and changes by foreign pages (403).

    It adds ``DEFAULT_HEADERS`` to every answer that lacks them, and ``Strict-Transport-Security`` to every answer that
    goes to a browser by https.
    """

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        self._app = app
        self._transport = Transport(settings)
        own = (*settings.allowed_hosts, settings.api_host, self._transport.public_name or settings.api_host)
        self._names = {host_name(name) for name in own}
        self._serves_all = "*" in self._names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_defaults(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                for name, value in DEFAULT_HEADERS.items():
                    headers.setdefault(name, value)
                if self._transport.is_https(scope):
                    headers.setdefault("strict-transport-security", _ONLY_HTTPS)
            await send(message)

        try:
            headers = Headers(scope=scope)
            host = self._check_host(headers, scope["http_version"])
            if scope["method"] not in _SAFE_METHODS:
                _check_origin(headers, host)
        except OmniJobsError as error:
            await answer_to(error)(scope, receive, send_with_defaults)
            return
        await self._app(scope, receive, send_with_defaults)

    def _check_host(self, headers: Headers, http_version: str) -> str:
        """Return the host with its port, empty if HTTP/1.0 names none. Raises UnknownHost, MalformedRequest."""
        hosts = headers.getlist("host")
        if len(hosts) > 1 or (not hosts and http_version != "1.0"):  # HTTP/1.0, which no browser speaks, needs none
            raise MalformedRequest("a request names one host", field="Host")
        host = hosts[0].strip().lower() if hosts else ""
        name = host_name(host)
        is_known = name in self._names or is_local_name(name) or address_of(name) is not None
        if hosts and not self._serves_all and not is_known:
            raise UnknownHost(
                f"this server is not called {name!r:.100}: OMNI_JOBS_ALLOWED_HOSTS names its hosts", field="Host"
            )
        return host


def _check_origin(headers: Headers, host: str) -> None:
    """Raise ForeignOrigin if a page of another origin sends the request. Clients that are no browser name none."""
    site = headers.get("sec-fetch-site")
    if site is not None:  # every browser since 2023 sends it, to https and to loopback addresses
        if site not in ("same-origin", "none"):
            raise ForeignOrigin(field="Sec-Fetch-Site")
        return
    origin = headers.get("origin")
    if origin is None:
        return
    origin_host = origin.lower().partition("://")[2]  # "null" has none
    if not origin_host or _without_usual_port(origin_host) != _without_usual_port(host):
        raise ForeignOrigin(f"a page of {origin!r:.100} may not do this", field="Origin")


def _without_usual_port(authority: str) -> str:
    """Return host and port without :80 and :443. Both count as none, because a proxy in front may change the scheme."""
    return authority.removesuffix(":80").removesuffix(":443")
