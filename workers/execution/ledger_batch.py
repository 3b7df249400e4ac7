"""``LedgerBatch``: what the executor asks of the ledger, gathered until the ledger's thread writes it together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from omni_jobs.jobs import Claims, Completion, Failure, NewSnapshot, Outcome, ProgressReport

T = TypeVar("T")
A = TypeVar("A")


class Ask(NamedTuple, Generic[T, A]):
    """A call of the executor, and the future of its answer."""

    argument: T
    future: asyncio.Future[A]


class Wanted(NamedTuple):
    """What a claim asks for."""

    at_most: int
    of_high: int  # further ones, of high jobs
    is_idle: bool


@dataclass(eq=False, slots=True)
class LedgerBatch:
    """The reports and claims that the thread writes together, in this order: claims last, because ends free slots."""

    completions: list[Ask[Completion, Outcome]] = field(default_factory=list)
    snapshots: list[Ask[NewSnapshot, bool]] = field(default_factory=list)
    failures: list[Ask[Failure, Outcome]] = field(default_factory=list)
    releases: list[Ask[tuple[int, int], None]] = field(default_factory=list)
    claims: list[Ask[Wanted, Claims]] = field(default_factory=list)
    progress: dict[int, ProgressReport] = field(default_factory=dict)
    last: bool = False  # the worker retires after it

    @property
    def asks(self) -> Sequence[list[Ask[Any, Any]]]:
        """All asks: completions, snapshots, failures, releases, claims."""
        return self.completions, self.snapshots, self.failures, self.releases, self.claims

    @property
    def size(self) -> int:
        """The number of asks."""
        return sum(map(len, self.asks))

    def add(self, later: LedgerBatch) -> None:
        """Take over what a later batch holds."""
        for asks, more in zip(self.asks, later.asks, strict=True):
            asks.extend(more)
        self.progress |= later.progress
        self.last |= later.last
