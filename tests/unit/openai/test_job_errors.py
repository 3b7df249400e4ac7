"""What a waiting client is told of a job that has not completed."""

from datetime import UTC, datetime

import pytest

from omni_jobs import errors
from omni_jobs.errors import OmniJobsError
from omni_jobs.http.error_answers import answer_to
from omni_jobs.openai.job_errors import JobFailure, check_completed, made_once
from omni_jobs.states import JobState
from omni_jobs.views import ErrorView, JobView


def job(state: JobState, error: OmniJobsError | None = None) -> JobView:
    return JobView(
        id="job-1",
        pipeline="echo",
        pipeline_version="1",
        status=state,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        started_at=None,
        finished_at=None,
        modalities=["text"],
        stages=[],
        result=None,
        artifacts=[],
        error=None if error is None else ErrorView(**error.to_dict()),
        metadata={},
        seed=1,
    )


@pytest.mark.parametrize(
    ("state", "error", "status", "code"),
    [
        (JobState.QUEUED, None, 504, "still_running"),
        (JobState.CANCELLING, None, 504, "still_running"),
        (JobState.CANCELLED, None, 409, "job_cancelled"),
        (JobState.EXPIRED, errors.DeadlineExceeded(), 504, "deadline_exceeded"),
        (JobState.EXPIRED, errors.QueueTimeLimit(), 504, "queue_time_limit"),
        (JobState.FAILED, errors.InvalidRequest(field="messages"), 400, "invalid_request"),
        (JobState.FAILED, errors.RequestTooLarge(), 413, "request_too_large"),
        (JobState.FAILED, errors.ConfigError(), 500, "invalid_config"),
        (JobState.FAILED, errors.MediaUnavailable(), 400, "media_unavailable"),
        (JobState.FAILED, errors.Quarantined(), 500, "quarantined"),
        (JobState.FAILED, errors.OutOfMemory(), 500, "out_of_memory"),
        (JobState.FAILED, errors.RemoteUnavailable(), 500, "remote_unavailable"),
        (JobState.FAILED, None, 500, "internal"),
    ],
)
def test_the_status_fits_and_no_client_tries_again(
    state: JobState, error: OmniJobsError | None, status: int, code: str
) -> None:
    with pytest.raises(JobFailure) as caught:
        check_completed(job(state, error))
    failure = caught.value
    assert (failure.job_id, failure.status, failure.error.code) == ("job-1", status, code)
    answer = answer_to(failure.error, failure.status, job_id=failure.job_id)
    assert answer.status_code == status
    assert answer.headers["x-should-retry"] == "false"
    assert b'"retryable": false' in bytes(answer.body)
    assert b'"job_id": "job-1"' in bytes(answer.body)


def test_a_completed_job_is_no_error() -> None:
    check_completed(job(JobState.COMPLETED))


def test_an_outage_after_the_submit_invites_only_clients_with_a_key() -> None:
    with pytest.raises(JobFailure) as caught, made_once("job-1", has_key=False):
        raise errors.DatabaseUnavailable
    assert (caught.value.job_id, caught.value.status, caught.value.error.code) == ("job-1", 503, "database_unavailable")
    with pytest.raises(errors.DatabaseUnavailable), made_once("job-1", has_key=True):
        raise errors.DatabaseUnavailable


@pytest.mark.parametrize("has_key", [False, True])
def test_an_error_that_stays_names_the_job(has_key: bool) -> None:
    with pytest.raises(JobFailure) as caught, made_once("job-1", has_key=has_key):
        raise errors.PayloadTooLarge
    assert (caught.value.job_id, caught.value.status, caught.value.error.code) == ("job-1", 500, "payload_too_large")
