"""Small middleware of the application: HEAD wherever GET is answered, and an answer where the server stops."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omni_jobs.errors import ServerBusy
from omni_jobs.http.error_answers import answer_to


class HeadRequests:
    """Middleware that passes a HEAD request on as GET and drops the body of the answer.

    ``request.state.method`` is the method as the client sent it. A route whose body is dear to make goes by it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["method"] = scope["method"]
        if scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self._app({**scope, "method": "GET"}, receive, send_without_body)


class CancelledRequests:
    """Middleware that answers a cancelled request with ServerBusy, unless its answer has begun.

    uvicorn cancels a request only when it stops, and would answer it in a form of its own, as a bug.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except asyncio.CancelledError:
            if not has_begun:
                await answer_to(ServerBusy("the server is being stopped"))(scope, receive, send)
            raise
