"""``BrokenAnswers``: an answer that cannot go on ends its connection, with one line in the log.

Its status is sent, so no error can be answered: the client sees that bytes, or the last chunk, are missing.
"""

import logging
from collections.abc import Iterator
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omni_jobs.errors import OmniJobsError
from omni_jobs.http.places import Connection

logger = logging.getLogger(__name__)

_FORESEEN = (OmniJobsError, ClientDisconnect, HTTPException, OSError)  # TimeoutError is an OSError


class BrokenAnswers:
    """Middleware for errors that were foreseen: a service that is away, a damaged artifact, a client that is gone.

    A bug passes, so that the server logs its traceback. So does an error before the answer has begun.
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
        except Exception as error:
            causes = list(_causes(error))
            connection: Connection | None = scope.get("state", {}).get("connection")
            if not has_begun or connection is None or not all(isinstance(each, _FORESEEN) for each in causes):
                raise
            why = "; ".join(f"{each}" or type(each).__name__ for each in causes)
            logger.warning("%s %s: the answer breaks off: %s", scope["method"], quote(scope["path"]), why)
            connection.break_off()


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors behind those by which Starlette and task groups pass them on."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _causes(each)
    elif isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):
        yield from _causes(error.__cause__)
    else:
        yield error
