"""Skipped jobs: those that an action on many has left as they are, each kind of reason once. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from omni_jobs.jobs.life.fingerprint import pattern
from omni_jobs.views import SkippedJobs

MOST_KINDS: Final = 20
"""The most kinds that are told apart. Jobs of further ones count with the last kind of their code, or of all."""


def with_skipped(known: Iterable[SkippedJobs], more: Iterable[SkippedJobs]) -> Sequence[SkippedJobs]:
    """Return all of them by kind: those whose reasons differ in numbers, ids, URLs and paths alone are of one.

    The first job of a kind gives the id and the message.
    """
    kinds: list[SkippedJobs] = []
    for each in (*known, *more):
        number = _kind_of(each, kinds)
        if number is None:
            kinds.append(each)
        else:
            kinds[number] = kinds[number].model_copy(update={"count": kinds[number].count + each.count})
    return kinds


def _kind_of(skipped: SkippedJobs, kinds: Sequence[SkippedJobs]) -> int | None:
    """Return the number of the kind with which these jobs count; None: of a new one."""
    of_code = [number for number, kind in enumerate(kinds) if kind.code == skipped.code]
    reason = pattern(skipped.message)
    for number in of_code:
        if pattern(kinds[number].message) == reason:
            return number
    if len(kinds) < MOST_KINDS:
        return None
    return of_code[-1] if of_code else len(kinds) - 1
