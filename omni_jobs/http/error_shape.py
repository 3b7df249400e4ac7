"""``shape_of``: the JSON of an error as a client gets it, in the body of an answer or in a bulk's answers.

It has the fields of OpenAI's errors (``message``, ``type``, ``param``, ``code``), so that its clients can read it, and
those of our own.
"""

from http import HTTPStatus
from typing import Any

from omni_jobs.errors import OmniJobsError
from omni_jobs.tenants.key_store import mask_keys

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


def shape_of(error: OmniJobsError) -> dict[str, Any]:
    """Return what a client may see of an error, a RequestErrorView as JSON; without stage and key if it has none.

    The message is cut to 2000 characters and the field's name to 400, because they may quote the client's own text.
    API keys in them are masked.
    """
    field = None if error.field is None else mask_keys(error.field)[:_LONGEST_FIELD]
    status = HTTPStatus(error.http_status)
    other = "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
    details = {"stage": error.stage, "key": error.key}
    return {
        "code": error.code,
        "message": mask_keys(error.message)[:_LONGEST_MESSAGE],
        "type": _TYPES.get(status, other),
        "param": field,
        "field": field,
        "retryable": error.retryable,
        **{name: value for name, value in details.items() if value is not None},
    }
