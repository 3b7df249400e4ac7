"""Request ids: each request has one, which its answer names in ``X-Request-Id`` and its log lines show.

A client, or a proxy in front, may choose the id. It is for people who look for a request in logs, and is stored
nowhere else.
"""

import re
import uuid
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omni_jobs.logs.context import request_id as current
from omni_jobs.logs.secrets import mask_keys
from omni_jobs.tracing.traceparent import of_request, traceparent_of

HEADER = b"x-request-id"

_TOKEN = re.compile(rb"[A-Za-z0-9._-]{1,128}")


def current_request_id() -> str | None:
    """Return the id of the request that this code runs for, or None.

    A thread on which a route runs code knows the id, because anyio gives it the route's context. A thread that works
    for many requests at once, such as the group commit's, has none.
    """
    return current.get()


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the id that a request's headers name, or a new one.

    Ids of a request are one header ``X-Request-Id`` with 1 to 128 ASCII letters, digits, dots, dashes and underscores.
    Anything else, and an API key, is passed over, because log lines and headers of answers show the id as it is.
    """
    given = [value for name, value in headers if name == HEADER]
    if len(given) == 1 and _TOKEN.fullmatch(given[0]) and mask_keys(text := given[0].decode("ascii")) == text:
        return text
    return f"req-{uuid.uuid4().hex}"


class RequestIds:
    """Middleware that gives each request its id, as ``request.state.request_id``, and names it in the answer.

    The id is the one that the request's ``X-Request-Id`` chooses, or a new one. This stands outside all other
    middleware, so that every answer of the application has an id.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = request_id_of(scope["headers"])
        scope.setdefault("state", {})["request_id"] = request_id
        # It is never reset: the server has a task for each request, and logs an unforeseen error after this returns.
        current.set(request_id)
        if (traceparent := traceparent_of(scope["headers"])) is not None:
            of_request.set(traceparent)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (HEADER, request_id.encode())]
            await send(message)

        await self._app(scope, receive, send_with_id)
