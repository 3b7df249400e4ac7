"""``with_field_named`` and ``named_shape``: an error whose message names its field.

``str`` of an exception of the stock client shows the message alone, and "is required" says nothing by itself.
"""

from copy import copy
from typing import Any

from omni_jobs.errors import OmniJobsError
from omni_jobs.http.error_answers import shape_of

_WHOLE = "body"  # no field: a message about the body says so itself


def with_field_named(error: OmniJobsError) -> OmniJobsError:
    """Return the error with a message that begins with its field; itself if it names none."""
    if error.field is None or error.field == _WHOLE:
        return error
    named = copy(error)
    named.message = f"{error.field}: {error.message}"
    return named


def named_shape(error: OmniJobsError, status: int | None = None, *, job_id: str | None = None) -> dict[str, Any]:
    """Return ``shape_of`` the error with its field named."""
    return shape_of(with_field_named(error), status, job_id=job_id)
