"""``ProgressReports``: writes the progress of stage runs, with their previews, to SQL through the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omni_jobs.jobs import Claim, ProgressReport
from workers.execution.observers.run_observer import RunObserver, RunResult, StepTimes
from workers.execution.preview import Preview
from workers.stages.types import Progress

if TYPE_CHECKING:
    from workers.execution.ledger import Ledger


class ProgressReports(RunObserver):
    """Reports to the ledger, which throttles it, what each stage run's runner reports."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._previews: dict[int, Preview] = {}  # of the stage runs in flight that make some

    def progressed(self, claim: Claim, times: StepTimes, progress: Progress) -> None:
        picture = None
        if progress.picture is not None:
            picture = self._previews.setdefault(claim.stage_run_id, Preview()).url(progress.picture)
        self._ledger.report_progress(
            ProgressReport(
                claim.stage_run_id,
                claim.attempt,
                progress.done,
                progress.total,
                progress.unit,
                progress.text,
                picture=picture,
                resumed_at=progress.resumed_at,
                load_s=times.loaded_s,
            )
        )

    def ran(self, claim: Claim, times: StepTimes) -> None:
        self._ledger.finish_text(claim.stage_run_id)

    def ended(self, claim: Claim, times: StepTimes, result: RunResult) -> None:
        self._previews.pop(claim.stage_run_id, None)
        self._ledger.forget_progress(claim.stage_run_id)
