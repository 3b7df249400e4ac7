"""``CountedAnswers``: middleware that counts the answers of an API server."""

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omni_jobs.http.error_answers import code_of


class CountedAnswers:
    """Tells for each answer its status and the code of its error, "" without one.

    Answers that a connection gives by itself, such as those to heads that are too large, do not come by. The answer of
    a route that such a one has taken the place of is dropped, and counts for nothing.
    """

    def __init__(self, app: ASGIApp, count: Callable[[int, str], None]) -> None:
        self._app = app
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start" and not scope.get("state", {}).get("is_refused"):
                self._count(message["status"], code_of(scope))
            await send(message)

        await self._app(scope, receive, send_counted)
