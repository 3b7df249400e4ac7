"""``CancelledRequests``: answers the requests that the server cancels, because it stops and they take too long."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omni_jobs.errors import ServerBusy
from omni_jobs.http.error_answers import answer_to


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
