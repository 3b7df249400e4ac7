"""Refusals that are kept: the errors that stand in lists in the places of what was refused."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from omni_jobs.errors import OmniJobsError

T = TypeVar("T")
Result = TypeVar("Result")
E = TypeVar("E", bound=Exception)


def results_of(call: Callable[[T], Result], items: Sequence[T]) -> list[Result | OmniJobsError]:
    """Return the result of ``call`` for each item, or the OmniJobsError that it raised."""
    results: list[Result | OmniJobsError] = []
    for item in items:
        try:
            results.append(call(item))
        except OmniJobsError as error:
            results.append(without_frames(error))
    return results


def without_frames(error: E) -> E:
    """Remove the traceback and the cause of an error that is kept in a list, and return the error.

    The frames of a traceback refer to that list. Such a reference cycle would keep the whole bulk in memory until the
    garbage collector comes.
    """
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)
