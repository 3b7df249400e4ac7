"""``parsed``: the views in what a server answered."""

from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from omni_jobs.errors import OmniJobsError

T = TypeVar("T")


def parsed(view: type[T], content: bytes) -> T:
    """Return the view, or the list of views, that JSON holds. Raises OmniJobsError if it holds none."""
    try:
        return TypeAdapter(view).validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        what = f"{place}: {first['msg']}" if place else first["msg"]
        raise OmniJobsError(f"the server's answer is no valid {error.title}: {what}") from error
