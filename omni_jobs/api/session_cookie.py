"""The cookie in which a browser keeps the id of its session.

No script can read it, and a browser sends it to this site's own pages alone. Cookies know no ports: every server on the
same host name gets it, too. So it holds no key, and opens the dashboard alone, and for 12 hours at most. Where it is
for https alone, its name begins with ``__Host-``, by which browsers refuse it from other hosts of the domain.
"""

from typing import Final, Literal

from fastapi import Request, Response

from omni_jobs.http.transport import Transport

_NAME: Final = "omni_jobs_session"
_SAME_SITE: Final[Literal["strict"]] = "strict"


def session_of(request: Request, transport: Transport) -> str | None:
    """Return the id that a request's cookie holds; None for none, and for several, of which one may be planted."""
    name = _name(transport.needs_https(request.scope))
    pairs = [pair.partition("=") for header in request.headers.getlist("cookie") for pair in header.split(";")]
    ids = [value.strip() for found, _, value in pairs if found.strip() == name]
    return ids[0] if len(ids) == 1 else None


def keep_session(answer: Response, session_id: str, request: Request, transport: Transport) -> None:
    """Give the browser the cookie of a session. It ends with the browser."""
    secure = transport.needs_https(request.scope)
    answer.set_cookie(_name(secure), session_id, httponly=True, samesite=_SAME_SITE, secure=secure)


def drop_session(answer: Response, request: Request, transport: Transport) -> None:
    """Take the cookie from the browser."""
    secure = transport.needs_https(request.scope)
    answer.delete_cookie(_name(secure), httponly=True, samesite=_SAME_SITE, secure=secure)


def _name(secure: bool) -> str:
    return f"__Host-{_NAME}" if secure else _NAME
