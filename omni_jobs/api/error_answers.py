"""The API's answers to errors, all in one shape: ``{"error": {"code", "message", "field", …}}``."""

import errno
import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from omni_jobs.api.cut_error import cut_error
from omni_jobs.errors import InvalidRequest, OmniJobsError, RangeNotSatisfiable, StorageFull, TooManyJobs
from omni_jobs.views import ErrorView

logger = logging.getLogger(__name__)

LAST_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Connection": "close"}
"""The headers of an answer that passes no middleware, and after which the connection is closed."""


class ErrorBody(BaseModel):
    """The body of every answer of 400 and above but a 503 of /readyz. Fields that do not apply are left out."""

    error: ErrorView


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the declaration of error answers with these statuses, for a route's ``responses`` in FastAPI."""
    return {status: {"model": ErrorBody, "description": HTTPStatus(status).phrase} for status in statuses}


def install_error_answers(app: FastAPI) -> None:
    """Make the application answer every exception of a route in the API's shape of errors."""
    for kind in (OmniJobsError, RequestValidationError, HTTPException, ClientDisconnect, OSError):
        app.add_exception_handler(kind, _answer_exception)
    app.add_exception_handler(Exception, _answer_bug)


def answer_to(error: OmniJobsError) -> Response:
    """Return the HTTP answer for an error: its status, its body, and headers such as ``Retry-After``."""
    headers = {}
    if isinstance(error, TooManyJobs):
        headers["Retry-After"] = str(error.retry_after_s)
    if error.http_status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = "1"
    if isinstance(error, RangeNotSatisfiable):
        headers |= {"Accept-Ranges": "bytes", "Content-Range": f"bytes */{'*' if error.size is None else error.size}"}
    return _answer(error.http_status, error.to_dict(), headers)


def _answer(status: int, error: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
    # A lone surrogate from the client's text becomes its JSON escape.
    content = json.dumps({"error": cut_error(error)}, ensure_ascii=False).encode("utf-8", "backslashreplace")
    return Response(content, status, headers, media_type="application/json")


def _answer_exception(request: Request, error: Exception) -> Response:
    """Return the answer for an exception of a route, or of FastAPI and Starlette. Raise it again if it is a bug."""
    match error:
        case HTTPException():
            return _answer_of_framework(request, error)
        case ClientDisconnect():
            return Response(status_code=400)  # nobody reads it
        case RequestValidationError():  # invalid parameters; omni_jobs.requests checks the bodies
            first = error.errors()[0]
            error = InvalidRequest(str(first["msg"]).removeprefix("Value error, "), field=str(first["loc"][-1]))
        case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT):
            # The server was writing a file of its own: the answers of a bulk, or a part of an upload.
            error = StorageFull("no room is left on the server's disk")
    if not isinstance(error, OmniJobsError):
        raise error  # a bug
    if error.http_status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        logger.error("%s %s: %s", request.method, request.url.path, error)
    return answer_to(error)


def _answer_bug(request: Request, error: Exception) -> Response:
    """Answer an exception that nothing foresaw. Starlette logs it with its trace, and the client learns nothing."""
    return _answer(500, OmniJobsError("something went wrong in the server").to_dict(), LAST_HEADERS)


def _answer_of_framework(request: Request, error: HTTPException) -> Response:
    """Return the answer for an error that Starlette raises: a path without a route, a method that a path lacks."""
    phrase = HTTPStatus(error.status_code).phrase
    code = phrase.lower().replace(" ", "_").replace("-", "_")
    message = f"{phrase}: {request.method} {request.url.path}"
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_allowed_methods(request))
    return _answer(error.status_code, {"code": code, "message": message, "retryable": False}, headers)


def _allowed_methods(request: Request) -> list[str]:
    """Return the methods of the routes that name the request's path literally, or else of all that match it."""
    path = request.url.path
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    named = [route for route in routes if route.path == path]
    matching = named or [route for route in routes if route.path_regex.match(path)]
    return sorted({method for route in matching for method in route.methods or ()})
