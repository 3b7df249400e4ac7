"""``LedgerWriter``: writes the ledger's batches, on the ledger's thread, in as few transactions as there can be."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from omni_jobs.broker.relay import Relay
from omni_jobs.errors import DatabaseUnavailable, Fenced, OmniJobsError, StageError
from omni_jobs.jobs import Claims, Completion, Failure, Jobs, Outcome
from workers.execution.ledger_batch import Ask, LedgerBatch, Wanted
from workers.execution.run_times import RunTimes

logger = logging.getLogger(__name__)

T = TypeVar("T")
A = TypeVar("A")


class LedgerWriter:
    """Writes batches to SQL, rings for what they queue, and knows which stage runs the worker holds. For one thread."""

    def __init__(
        self,
        jobs: Jobs,
        worker_id: str,
        relay: Relay,
        *,
        on_answers: Callable[[Sequence[tuple[asyncio.Future[Any], object]]], None],
    ) -> None:
        """Hold what it writes with. ``on_answers`` gets (future, its result or error) of asks that are answered."""
        self._jobs = jobs
        self._worker_id = worker_id
        self._relay = relay
        self._on_answers = on_answers
        self._held: dict[int, float] = {}  # when each stage run was claimed that is not reported yet
        self._run_times = RunTimes()
        self._claims_again = False  # the last claim may have been granted, and its answer lost

    @property
    def holds_any(self) -> bool:
        """Whether the worker holds stage runs."""
        return bool(self._held)

    @property
    def mean_run_s(self) -> float | None:
        """How long a stage run took lately, from claim to end; None before the first end."""
        return self._run_times.mean()

    def write(self, batch: LedgerBatch) -> None:
        """Write a batch and answer it. Parts that are written leave it, so that it can be tried again.

        Raises DatabaseUnavailable, and Fenced when the worker has no lease.
        """
        if batch.completions and batch.claims and not (batch.failures or batch.releases):
            self._write_in_one(batch)
        self._write_group(batch.completions, self._complete)
        # Before a failure or release of the same attempt, after which the next one goes on from there.
        self._write_group(batch.snapshots, self._jobs.record_snapshots)
        self._write_group(batch.failures, self._fail)
        self._write_group(batch.releases, self._release)
        self._write_group(batch.claims, self._claim)
        if batch.progress:
            self._jobs.report_progress(list(batch.progress.values()))
            batch.progress = {}

    def _write_in_one(self, batch: LedgerBatch) -> None:
        """Write completions, and the claim that comes in their place, in one transaction, unless that is refused."""
        completions = [ask.argument for ask in batch.completions]
        [ask] = batch.claims
        again, self._claims_again = self._claims_again, True  # until its answer is here
        try:
            outcomes, claims = self._jobs.complete_and_claim(
                completions,
                self._worker_id,
                ask.argument.at_most,
                of_high=ask.argument.of_high,
                is_idle=ask.argument.is_idle,
                held=self._held.keys(),
                again=again,
            )
        except DatabaseUnavailable:
            raise
        except Fenced:
            return  # of the claim; the completions may still be recorded
        except Exception:
            logger.exception("a batch of %d failed in the database: in parts once more", batch.size)
            return
        self.answer(batch.completions, self._note_ends(completions, outcomes))
        self.answer(batch.claims, [self._note_claims(claims)])

    def _write_group(self, asks: list[Ask[T, A]], write: Callable[[list[T]], Sequence[A]]) -> None:
        """Write all in one transaction. An error that one of them causes must not fail the others: then one by one."""
        if not asks:
            return
        try:
            self.answer(asks, write([ask.argument for ask in asks]))
        except (DatabaseUnavailable, Fenced):
            raise
        except Exception as error:
            if len(asks) > 1:
                while asks:
                    self._write_group(asks[:1], write)
                    del asks[0]
                return
            logger.exception("%s failed in the database", write.__name__)
            self.answer(asks, [StageError(f"the database refused it: {type(error).__name__}")])

    def _complete(self, completions: list[Completion]) -> Sequence[Outcome]:
        return self._note_ends(completions, self._jobs.complete(completions))

    def _fail(self, failures: list[Failure]) -> Sequence[Outcome]:
        return self._note_ends(failures, [self._jobs.fail(failure) for failure in failures])

    def _note_ends(self, ends: Sequence[Completion | Failure], outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        at = time.monotonic()
        for end in ends:
            if (claimed_at := self._held.pop(end.stage_run_id, None)) is not None:
                self._run_times.note(at, at - claimed_at)
        self._relay.ring({queue for outcome in outcomes for queue in outcome.queues})
        return outcomes

    def _release(self, attempts: list[tuple[int, int]]) -> Sequence[None]:
        self._relay.ring(self._jobs.release(attempts, self._worker_id))
        for stage_run_id, _ in attempts:
            self._held.pop(stage_run_id, None)
        return [None] * len(attempts)

    def _claim(self, asked: list[Wanted]) -> Sequence[Claims]:
        [wanted] = asked
        again, self._claims_again = self._claims_again, True  # until its answer is here
        claims = self._jobs.claim(
            self._worker_id,
            wanted.at_most,
            of_high=wanted.of_high,
            is_idle=wanted.is_idle,
            held=self._held.keys(),
            again=again,
        )
        return [self._note_claims(claims)]

    def _note_claims(self, claims: Claims) -> Claims:
        """Note the stage runs as held, and return the claims."""
        self._claims_again = False
        self._held.update(dict.fromkeys((claim.stage_run_id for claim in claims.claims), time.monotonic()))
        return claims

    def answer(self, asks: list[Ask[T, A]], answers: Sequence[A | OmniJobsError]) -> None:
        """Answer the asks on the event loop, and take them out of their batch."""
        self._on_answers([(ask.future, answer) for ask, answer in zip(asks, answers, strict=True)])
        asks.clear()
