"""``Turn``: the reports and claims that the ledger writes together, each with the future of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from omni_jobs.errors import OmniJobsError
from omni_jobs.jobs import Claim, Completion, Failure, Outcome, ProgressReport

T = TypeVar("T")
A = TypeVar("A")


@dataclass(eq=False, slots=True)
class Ask(Generic[T, A]):
    """A call of the executor that waits for its answer."""

    argument: T
    future: asyncio.Future[A]
    answer: A = field(init=False)  # unless there is an error
    error: OmniJobsError | None = None

    def settle(self) -> None:
        """Give the answer, or raise the error, to the caller. On the event loop."""
        if self.future.done():  # the caller was cancelled
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.answer)


@dataclass(eq=False, slots=True)
class Turn:
    """The reports and claims that one turn of the thread writes, in this order: ends first, because they free slots."""

    completions: list[Ask[Completion, Outcome]] = field(default_factory=list)
    failures: list[Ask[Failure, Outcome]] = field(default_factory=list)
    releases: list[Ask[tuple[int, int], None]] = field(default_factory=list)
    claims: list[Ask[Sequence[tuple[int, int]], list[Claim]]] = field(default_factory=list)
    progress: dict[int, ProgressReport] = field(default_factory=dict)
    last: bool = False  # the worker retires after it

    def add(self, later: Turn) -> None:
        """Take over a later turn."""
        self.completions += later.completions
        self.failures += later.failures
        self.releases += later.releases
        self.claims += later.claims
        self.progress |= later.progress
        self.last |= later.last

    @property
    def size(self) -> int:
        """The number of calls that wait for an answer."""
        return len(self.completions) + len(self.failures) + len(self.releases) + len(self.claims)

    def asks(self) -> list[Ask[Any, Any]]:
        """Return everything that waits for an answer."""
        return [*self.completions, *self.failures, *self.releases, *self.claims]


def settle(asks: Sequence[Ask[Any, Any]]) -> None:
    """Settle many asks. On the event loop."""
    for ask in asks:
        ask.settle()
