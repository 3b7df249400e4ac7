"""``AskedJobs``: what a client asks for, as jobs: one for each answer, side by side."""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from omni_jobs.errors import InvalidRequest
from omni_jobs.openai.client_names import NameOf
from omni_jobs.requests import JobRequest, Submission, request_digest
from omni_jobs.tenants.caller import Caller

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AskedJobs(Generic[T]):
    """What a client asks for, correct in form.

    requests  of the jobs, one for each answer
    answer    how it is to be answered. It holds nothing of the request's media, because an answer may be late
    aside     the parameters that say how the answer is sent. They are no part of what is submitted: what broke off as a
              stream may be asked for whole, with the same key
    ignored   the names of what is ignored
    name_of   the client's names for the fields of the requests
    kept      what the jobs keep
    goes_on   whether the jobs go on whatever becomes of the client, because the request does not wait for them
    """

    requests: Sequence[JobRequest]
    answer: T
    aside: Container[str] = ()
    ignored: Sequence[str] = ()
    name_of: NameOf = str  # each field as it is called
    kept: Mapping[str, Any] = field(default_factory=dict)
    goes_on: bool = False

    def submissions(self, body: Mapping[str, Any], size: int, caller: Caller, key: str | None) -> list[Submission]:
        """Return a submission for each request. ``body``, of ``size`` bytes, is what was sent for all, with ``key``."""
        sent = {name: value for name, value in body.items() if name not in self.aside}
        digest = request_digest(sent)
        keys = [key if key is None or not number else f"{key}#{number}" for number in range(len(self.requests))]
        return [
            Submission(request, digest, size, caller, its_key, kept=self.kept)
            for request, its_key in zip(self.requests, keys, strict=True)
        ]


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
