"""The API's answers to errors. All have one shape, and say whether the same request may be sent again.

The shape has the fields of OpenAI's errors (``message``, ``type``, ``param``, ``code``), so that its clients can read
it, and those of our own.
"""

import errno
import json
import logging
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from omni_jobs.errors import (
    InvalidRequest,
    LimitReached,
    MalformedRequest,
    MethodNotAllowed,
    NotFound,
    OmniJobsError,
    RangeNotSatisfiable,
    StorageFull,
    Unauthenticated,
)
from omni_jobs.logs.secrets import mask_keys
from omni_jobs.requests.complaints import words_of
from omni_jobs.views import RequestErrorView

logger = logging.getLogger(__name__)

DEFAULT_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",  # no page of another origin embeds an answer
    "X-Frame-Options": "DENY",
}
"""The headers of every answer that has no others of these names."""
LAST_HEADERS = {**DEFAULT_HEADERS, "Connection": "close"}
"""The headers of an answer that passes no middleware, and after which the connection is closed."""

_LONGEST_MESSAGE = 2000  # characters
_LONGEST_FIELD = 400
_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.CONFLICT: "conflict_error",
    HTTPStatus.GONE: "not_found_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}
"""The types of errors by status. Others are ``server_error`` from 500 on, and ``invalid_request_error`` below."""


class ErrorBody(BaseModel):
    """The body of every answer of 400 and above. Stage and key are left out where they do not apply."""

    error: RequestErrorView


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the declaration of error answers with these statuses, for a route's ``responses`` in FastAPI."""
    return {status: {"model": ErrorBody, "description": HTTPStatus(status).phrase} for status in statuses}


def install_error_answers(app: FastAPI) -> None:
    """Make the application answer every exception of a route in the API's shape of errors."""
    for kind in (OmniJobsError, RequestValidationError, HTTPException, ClientDisconnect, OSError):
        app.add_exception_handler(kind, _answer_exception)
    app.add_exception_handler(Exception, _answer_bug)


def shape_of(error: OmniJobsError, status: int | None = None, *, job_id: str | None = None) -> dict[str, Any]:
    """Return what a client may see of an error, a RequestErrorView as JSON; without stage, key and job_id if None.

    ``status``: that of the answer, if it is not the error's own. ``job_id``: the job whose error it is, or that goes
    on; a repeated request would make another job, so no client shall repeat it. The message is cut to 2000 characters
    and the field's name to 400, because they may quote the client's own text. API keys in them are masked.
    """
    field = None if error.field is None else mask_keys(error.field)[:_LONGEST_FIELD]
    status = HTTPStatus(status or error.http_status)
    other = "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
    details = {"stage": error.stage, "key": error.key, "job_id": job_id}
    return {
        "code": error.code,
        "message": mask_keys(error.message)[:_LONGEST_MESSAGE],
        "type": _TYPES.get(status, other),
        "param": field,
        "field": field,
        "retryable": error.retryable and job_id is None,
        **{name: value for name, value in details.items() if value is not None},
    }


def answer_to(error: OmniJobsError, status: int | None = None, *, job_id: str | None = None) -> Response:
    """Return the HTTP answer for an error: its status, its body, and the headers of ``headers_of``.

    ``status`` and ``job_id`` are as in ``shape_of``.
    """
    shape = shape_of(error, status, job_id=job_id)
    headers = headers_of(error) if job_id is None else {"X-Should-Retry": "false"}
    # A lone surrogate from the client's text becomes its JSON escape.
    content = json.dumps({"error": shape}, ensure_ascii=False).encode("utf-8", "backslashreplace")
    return ErrorAnswer(content, status or error.http_status, headers, type(error).code)


class ErrorAnswer(Response):
    """The answer for an error. It leaves the error's code in the request's scope, where ``code_of`` finds it."""

    media_type = "application/json"

    def __init__(self, content: bytes, status: int, headers: dict[str, str], code: str) -> None:
        super().__init__(content, status, headers)
        self._code = code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        note_code(scope, self._code)
        await super().__call__(scope, receive, send)


def note_code(scope: Scope, code: str) -> None:
    """Note the code of the error that a request is answered with."""
    scope.setdefault("state", {})["error_code"] = code


def code_of(scope: Scope) -> str:
    """Return the code of the error that a request was answered with; "" without one, or before the answer."""
    code: str = scope.get("state", {}).get("error_code", "")
    return code


def headers_of(error: OmniJobsError) -> dict[str, str]:
    """Return the headers of the answer for an error, such as ``Retry-After``.

    ``X-Should-Retry`` tells OpenAI's clients whether to repeat the request. Without it they would go by the status.
    """
    headers = {"X-Should-Retry": str(error.retryable).lower()}
    if isinstance(error, LimitReached):
        headers["Retry-After"] = str(error.retry_after_s)
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    if error.http_status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = "1"
    if isinstance(error, RangeNotSatisfiable):
        headers |= {"Accept-Ranges": "bytes", "Content-Range": f"bytes */{'*' if error.size is None else error.size}"}
    return headers


def invalid_parameter(error: RequestValidationError) -> InvalidRequest:
    """Return the error for a parameter of a path, a query or a header. ``omni_jobs.requests`` checks the bodies."""
    first = error.errors()[0]
    return InvalidRequest(words_of(first), field=str(first["loc"][-1]))


def _answer_exception(request: Request, error: Exception) -> Response:
    """Return the answer for an exception of a route, or of FastAPI and Starlette. Raise it again if it is a bug."""
    match error:
        case HTTPException():
            return answer_of_framework(request, error)
        case ClientDisconnect():
            error = MalformedRequest("the client left")  # nobody reads it
        case RequestValidationError():
            error = invalid_parameter(error)
        case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT):
            # The server was writing a file of its own: the answers of a bulk, or a part of an upload.
            error = StorageFull("no room is left on the server's disk")
    if not isinstance(error, OmniJobsError):
        raise error  # a bug
    if error.http_status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        logger.error("%s %s: %s", request.method, quote(request.url.path), error)
    return answer_to(error)


def bytes_of(error: OmniJobsError, headers: list[tuple[bytes, bytes]]) -> bytes:
    """Return an error as the bytes of an HTTP answer that has these headers too, and ends its connection."""
    answer = answer_to(error)
    answer.headers.update(LAST_HEADERS)
    lines = [b"HTTP/1.1 %d %s" % (answer.status_code, HTTPStatus(answer.status_code).phrase.encode())]
    lines += [b"%s: %s" % header for header in (*headers, *answer.raw_headers)]
    return b"\r\n".join([*lines, b"", bytes(answer.body)])


def _answer_bug(request: Request, error: Exception) -> Response:
    """Answer an exception that nothing foresaw. Starlette logs it with its trace, and the client learns nothing."""
    answer = answer_to(OmniJobsError("something went wrong in the server"))
    answer.headers.update(LAST_HEADERS)
    return answer


def answer_of_framework(request: Request, error: HTTPException) -> Response:
    """Return the answer where Starlette finds no route for a path (404) or for its method (405).

    Raises the error again if it is another, because it is a bug that one is raised.
    """
    what = f"{HTTPStatus(error.status_code).phrase}: {request.method} {request.url.path}"
    if error.status_code == HTTPStatus.NOT_FOUND:
        return answer_to(NotFound(what))
    if error.status_code != HTTPStatus.METHOD_NOT_ALLOWED:
        raise error
    answer = Response(status_code=204) if request.method == "OPTIONS" else answer_to(MethodNotAllowed(what))
    answer.headers["Allow"] = ", ".join(_allowed_methods(request))
    return answer


def _allowed_methods(request: Request) -> list[str]:
    """Return the methods of the routes that name the request's path literally, or else of all that match it."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    named = [route for route in routes if route.path == path]
    matching = named or [route for route in routes if route.path_regex.match(path)]
    methods = {method for route in matching for method in route.methods or ()}
    return sorted(methods | {"OPTIONS"} | ({"HEAD"} if "GET" in methods else set()))
