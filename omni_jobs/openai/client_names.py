"""``in_client_names``: an error that names a field of the job's request names what the client sent in its place."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase

from omni_jobs.errors import OmniJobsError
from omni_jobs.openai.job_errors import JobFailure


@contextmanager
def in_client_names(names: Mapping[str, str]) -> Iterator[None]:
    """Context manager: an error of the block names its field as the client does.

    ``names``: the client's names by patterns of a job request's fields, such as ``stages.*.speed``; the first that fits
    counts. A JobFailure's error is renamed, too.
    """
    try:
        yield
    except JobFailure as failure:
        rename(failure.error, names)
        raise
    except OmniJobsError as error:
        rename(error, names)
        raise


def rename(error: OmniJobsError, names: Mapping[str, str]) -> None:
    """Give an error's field the client's name for it. The message says which one, where a name has several of a stage.

    Such a name is ``size``, which sets a width and a height.
    """
    field = error.field or ""
    name = next((name for pattern, name in names.items() if fnmatchcase(field, pattern)), None)
    if name is None:
        return
    error.field = name
    own = field.rpartition(".")[2]
    if any(known == name and pattern.rpartition(".")[2] != own for pattern, known in names.items() if field in names):
        error.message = f"{own}: {error.message}"
