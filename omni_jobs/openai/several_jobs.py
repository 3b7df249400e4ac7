"""A request that asks for several answers: a job for each, side by side."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omni_jobs.errors import InvalidRequest
from omni_jobs.requests import JobRequest, Submission, request_digest
from omni_jobs.tenants.caller import Caller


def seeds_of(taken: Mapping[str, Any], most: int) -> Iterator[int | None]:
    """Yield the seed of each of the ``n`` answers; None: the job draws its own.

    Raises InvalidRequest naming ``n``, which has ``most`` at most, or ``seed``.
    """
    n, seed = taken.get("n", 1), taken.get("seed")
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= most:
        raise InvalidRequest(f"must be a whole number from 1 to {most}", field="n")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise InvalidRequest("must be a valid integer", field="seed")
    for number in range(n):
        yield None if seed is None else seed + number


def submissions_of(
    requests: Sequence[JobRequest], sent: Mapping[str, Any], size: int, caller: Caller, key: str | None
) -> list[Submission]:
    """Return a submission for each request. ``sent``, of ``size`` bytes, is what was sent for all, with ``key``."""
    keys = [key if key is None or not number else f"{key}#{number}" for number in range(len(requests))]
    digest = request_digest(sent)
    return [Submission(request, digest, size, caller, its_key) for request, its_key in zip(requests, keys, strict=True)]
