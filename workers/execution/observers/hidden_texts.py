"""``HiddenTexts``: no log line of a worker quotes the texts of the stage runs that it has in flight."""

from omni_jobs.jobs import Claim
from omni_jobs.logs import texts
from workers.execution.observers.run_observer import RunObserver, RunResult, StepTimes


class HiddenTexts(RunObserver):
    """Hides a stage run's texts from its claim to its end: an error message may quote them."""

    def claimed(self, claim: Claim, times: StepTimes) -> None:
        texts.hide(claim.stage_run_id, claim.request)

    def ended(self, claim: Claim, times: StepTimes, result: RunResult) -> None:
        texts.show(claim.stage_run_id)
