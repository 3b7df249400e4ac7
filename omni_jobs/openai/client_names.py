"""``in_client_names``: an error that names a field of the job's request names what the client sent in its place."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase

from omni_jobs.errors import OmniJobsError
from omni_jobs.openai.job_errors import JobFailure

NameOf = Callable[[str], str]
"""Returns what a client calls a field of its job's request."""


def names_of(patterns: Mapping[str, str]) -> NameOf:
    """Return the client's names by patterns of fields, such as ``stages.*.speed``; the first that fits counts."""
    return lambda field: next((name for pattern, name in patterns.items() if fnmatchcase(field, pattern)), field)


@contextmanager
def in_client_names(name_of: NameOf) -> Iterator[None]:
    """Context manager: an error of the block, or of its JobFailure, names its field as the client does."""
    try:
        yield
    except JobFailure as failure:
        rename(failure.error, name_of)
        raise
    except OmniJobsError as error:
        rename(error, name_of)
        raise


def rename(error: OmniJobsError, name_of: NameOf) -> None:
    """Give an error's field the client's name for it. The message says which side of a ``size`` it is, or all sides."""
    if error.field is None:
        return
    own = error.field.rpartition(".")[2]
    error.field = name_of(error.field)
    if error.field == "size" != own and not error.message.startswith(f"{own} x "):
        error.message = f"{own}: {error.message}"
