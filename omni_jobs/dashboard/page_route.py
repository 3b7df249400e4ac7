"""``PageRoute``: a route whose errors are pages, because a person reads them."""

import logging
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from omni_jobs.dashboard.templates import rendered
from omni_jobs.dashboard.visit import PAGE_HEADERS, frame_of, moved
from omni_jobs.errors import OmniJobsError, Unauthenticated
from omni_jobs.http.error_answers import headers_of, invalid_parameter, note_code, shape_of

logger = logging.getLogger(__name__)

_Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class PageRoute(APIRoute):
    """A route of the dashboard. Who has to sign in is sent to do so; any other error is a page that says it."""

    def get_route_handler(self) -> _Handler:
        """Return the handler of FastAPI with its errors made pages."""
        handle = super().get_route_handler()

        async def handle_as_page(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                return error_page(request, invalid_parameter(error))
            except Unauthenticated as error:
                return _to_sign_in(request, error)
            except OmniJobsError as error:
                return error_page(request, error)

        return handle_as_page


def error_page(request: Request, error: OmniJobsError) -> Response:
    """Return the page that says an error."""
    note_error(request, error)
    shape = shape_of(error)
    frame = frame_of(request, getattr(request.state, "caller", None))
    html = rendered("error.html", **frame, page="error", title=f"{error.http_status}", error=shape)
    headers = {**headers_of(error), **PAGE_HEADERS}
    headers.pop("WWW-Authenticate", None)
    return Response(html.encode("utf-8", "replace"), error.http_status, headers, media_type="text/html")


def note_error(request: Request, error: OmniJobsError) -> None:
    """Note the error that a page says: its code for the metrics, and in the log if it is the server's own."""
    note_code(request.scope, error.code)
    if error.http_status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        logger.error("%s %s: %s", request.method, quote(request.url.path), error)


def _to_sign_in(request: Request, error: Unauthenticated) -> Response:
    services = request.app.state.services
    root: str = services.settings.root_path
    if services.callers.auth != "keys":  # nobody can sign in
        return error_page(request, error)
    if "hx-request" in request.headers:  # htmx would put the page of the sign-in into the fragment
        return Response(status_code=401, headers={"HX-Redirect": f"{root}/signin"})
    path = request.scope["path"].removeprefix(root)
    wanted = f"{path}?{request.url.query}" if request.url.query else path
    back = f"?to={quote(wanted)}" if request.method == "GET" and wanted != "/" else ""
    return moved(root, f"/signin{back}")
