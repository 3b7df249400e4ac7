"""Every error leaves the API in one shape: ``{"error": {"code", "message", "field", …}}``."""

from __future__ import annotations

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

from omni_jobs.errors import InvalidRequest, OmniJobsError, RangeNotSatisfiable, StorageFull, TooManyJobs
from omni_jobs.views import ErrorView

__all__ = ["ErrorBody", "answer_to", "errors", "install", "shown", "unforeseen"]

logger = logging.getLogger(__name__)

_LONGEST_MESSAGE = 2000
_LONGEST_FIELD = 400
_OF_A_BUG = {  # its answer passes no middleware, and uvicorn closes the connection after it
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Connection": "close",
}


class ErrorBody(BaseModel):
    """What every answer of 400 and above carries; parts that do not apply are left out."""

    error: ErrorView


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's ``responses`` for these statuses."""
    return {status: {"model": ErrorBody, "description": HTTPStatus(status).phrase} for status in statuses}


def install(app: FastAPI) -> None:
    """Map every error to its answer."""
    app.add_exception_handler(OmniJobsError, _ours)
    app.add_exception_handler(RequestValidationError, _framework_validation)
    app.add_exception_handler(HTTPException, _framework)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(OSError, _of_the_system)
    app.add_exception_handler(Exception, _unforeseen)


def shown(error: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an error that clients see; cut the texts, because they may quote the client's own."""
    cut = {name: value for name, value in error.items() if name in ErrorView.model_fields}
    cut["message"] = str(cut["message"])[:_LONGEST_MESSAGE]
    if "field" in cut:
        cut["field"] = cut["field"][:_LONGEST_FIELD]
    return cut


def unforeseen() -> OmniJobsError:
    """What a client is told of a bug: nothing of the inside."""
    return OmniJobsError("something went wrong in the server")


def _answer(status: int, error: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    # A lone surrogate from the client's text becomes its JSON escape.
    content = json.dumps({"error": shown(error)}, ensure_ascii=False).encode("utf-8", "backslashreplace")
    return Response(content, status, headers, media_type="application/json")


def answer_to(error: OmniJobsError) -> Response:
    """The answer that tells of an error."""
    headers = {}
    if isinstance(error, TooManyJobs):
        headers["Retry-After"] = str(error.retry_after_s)
    if error.http_status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = "1"
    if isinstance(error, RangeNotSatisfiable):
        headers |= {"Accept-Ranges": "bytes", "Content-Range": f"bytes */{'*' if error.size is None else error.size}"}
    return _answer(error.http_status, error.to_dict(), headers)


def _ours(request: Request, error: Exception) -> Response:
    if not isinstance(error, OmniJobsError):
        return _unforeseen(request, error)
    if error.http_status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        logger.error("%s %s: %s", request.method, request.url.path, error)
    return answer_to(error)


def _framework_validation(request: Request, error: Exception) -> Response:
    """Of path, query and header parameters; bodies are checked by omni_jobs.requests."""
    if not isinstance(error, RequestValidationError):
        return _unforeseen(request, error)
    first = error.errors()[0]
    return _ours(request, InvalidRequest(str(first["msg"]), field=str(first["loc"][-1])))


def _framework(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        return _unforeseen(request, error)
    phrase = HTTPStatus(error.status_code).phrase
    code = phrase.lower().replace(" ", "_").replace("-", "_")
    what = f"{phrase}: {request.method} {request.url.path}"
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_allowed(request))
    return _answer(error.status_code, {"code": code, "message": what, "retryable": False}, headers)


def _allowed(request: Request) -> list[str]:
    """The methods of all routes of the path; of the one that names it literally, where there is one."""
    path = request.url.path
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    fitting = [route for route in routes if route.path == path] or [
        route for route in routes if route.path_regex.match(path)
    ]
    return sorted({method for route in fitting for method in route.methods or ()})


def _of_the_system(request: Request, error: Exception) -> Response:
    """A full disk under the files that the server writes for itself: a bulk's answers, an upload's part."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _ours(request, StorageFull("no room is left on the server's disk"))
    raise error


def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=400)  # nobody reads it


def _unforeseen(request: Request, error: Exception) -> Response:
    """A bug. Starlette logs it with its trace; the client learns nothing of the inside."""
    return _answer(500, unforeseen().to_dict(), _OF_A_BUG)
