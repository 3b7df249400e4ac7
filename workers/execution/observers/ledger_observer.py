"""``LedgerObserver``: what can be heard of a worker's ledger, once it is recorded in SQL."""

from __future__ import annotations

from collections.abc import Sequence

from omni_jobs.jobs import Claim, Outcome, Report


class LedgerObserver:
    """Hears on the ledger's thread what was recorded for its worker. Each method returns at once."""

    def claimed(self, claims: Sequence[Claim]) -> None:
        """These stage runs are this worker's from now on; perhaps none is, because none waited."""

    def renewed(self) -> None:
        """The worker's lease was renewed."""

    def ended(self, reports: Sequence[Report], outcomes: Sequence[Outcome]) -> None:
        """These reports have been answered; where the outcome is not ``won`` the attempt was over already."""
