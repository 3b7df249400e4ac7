from __future__ import annotations

from omni_jobs.errors import ModelError, OutOfMemory, WorkerLost
from omni_jobs.retry import LONGEST_DELAY_S, Retry, retry_after


def test_errors_that_nothing_helps_are_final() -> None:
    assert retry_after(ModelError(), failures=1, max_attempts=3) is None


def test_retryable_errors_wait_longer_each_time() -> None:
    delays = [retry_after(OutOfMemory(), failures=n, max_attempts=100) for n in range(1, 5)]
    assert delays == [Retry(1.0), Retry(2.0), Retry(4.0), Retry(8.0)]
    assert retry_after(OutOfMemory(), failures=99, max_attempts=100) == Retry(LONGEST_DELAY_S)


def test_attempts_are_limited() -> None:
    assert retry_after(OutOfMemory(), failures=3, max_attempts=3) is None
    assert retry_after(WorkerLost(), failures=1, max_attempts=1) is None


def test_a_lost_worker_costs_no_time() -> None:
    assert retry_after(WorkerLost(), failures=2, max_attempts=3) == Retry(0.0)
