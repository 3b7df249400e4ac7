"""``check_completed``: a job that did not complete, as the error that a waiting client gets.

No such answer invites the client to try again, because the job has had its attempts, was ended by its user, or goes
on: a repeated request would be another job.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from omni_jobs.errors import Expired, InvalidInput, JobCancelled, OmniJobsError, RequestTooLarge, StillRunning
from omni_jobs.states import JobState
from omni_jobs.views import JobView


class JobFailure(Exception):
    """A job that has not completed. ``status``: of the answer."""

    def __init__(self, job_id: str, error: OmniJobsError, status: int) -> None:
        super().__init__(f"{job_id}: {error}")
        self.job_id = job_id
        self.error = error
        self.status = status


def check_completed(job: JobView) -> None:
    """Raise JobFailure unless the job has completed.

    Input that only a stage could see to be wrong: 400, or 413 if it is too large. Cancelled: 409. Still running, or
    ended by its deadline: 504. All else: 500.
    """
    if job.status is JobState.COMPLETED:
        return
    error = error_of(job)
    match error:
        case RequestTooLarge():
            status = error.http_status
        case InvalidInput() if error.http_status < HTTPStatus.INTERNAL_SERVER_ERROR:
            status = HTTPStatus.BAD_REQUEST
        case Expired() | StillRunning() | JobCancelled():
            status = error.http_status
        case _:
            status = HTTPStatus.INTERNAL_SERVER_ERROR
    raise JobFailure(job.id, error, status)


@contextmanager
def made_once(job_id: str, *, has_key: bool) -> Iterator[None]:
    """Context manager for what follows a submit: an error in the block is raised as the job's, as a JobFailure.

    Else a client would send the request again, after an outage of the database for example, and make a second job.
    ``has_key``: the submit has an idempotency key, so that it may be sent again, and an error that may pass is raised
    as it is. One that stays names the job in any case, because that has what was made.
    """
    try:
        yield
    except OmniJobsError as error:
        if has_key and error.retryable:
            raise
        raise JobFailure(job_id, error, error.http_status) from error


def error_of(job: JobView) -> OmniJobsError:
    """Return the error of a job that has not completed: why it ended, or that it goes on."""
    if not job.status.is_final:
        return StillRunning(f"job {job.id} is {job.status.value}, and goes on: GET /v1/jobs/{job.id} has its result")
    if job.status is JobState.CANCELLED:
        return JobCancelled(f"job {job.id} was cancelled")
    if job.error is None:
        return OmniJobsError(f"job {job.id} is {job.status.value}")
    return OmniJobsError.from_dict(job.error.model_dump())
