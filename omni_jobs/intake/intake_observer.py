"""``IntakeObserver``: what can be heard of the submissions and retries that come to an API process."""

from collections.abc import Sequence

from omni_jobs.errors import OmniJobsError
from omni_jobs.jobs import SubmitResult
from omni_jobs.requests import Submission


class IntakeObserver:
    """Hears on the intake's event loop what it has answered. Each method returns at once."""

    def submitted(
        self, submissions: Sequence[Submission], results: Sequence[SubmitResult | OmniJobsError], seconds: float
    ) -> None:
        """These submissions, which came together, have their results, in their order, so many seconds later.

        An error is that of a refusal or of a service that is away. Of a client that left meanwhile nothing is heard.
        """

    def retried(self, job_id: str, error: OmniJobsError | None) -> None:
        """A retry of this job was asked for: it is queued again, or refused with the error."""
