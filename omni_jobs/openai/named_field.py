"""``with_field_named``: an error whose message names its field.

``str`` of an exception of the stock client shows the message alone, and "is required" says nothing by itself.
"""

from copy import copy

from omni_jobs.errors import OmniJobsError

_WHOLE = "body"  # no field: a message about the body says so itself


def with_field_named(error: OmniJobsError) -> OmniJobsError:
    """Return the error with a message that begins with its field; itself if it names none."""
    if error.field is None or error.field == _WHOLE:
        return error
    named = copy(error)
    named.message = f"{error.field}: {error.message}"
    return named
