import pytest
from pydantic import ValidationError

from omni_jobs.errors import (
    EngineDead,
    Fenced,
    ModelError,
    ObjectCorrupt,
    OutOfMemory,
    PayloadCorrupt,
    StorageUnavailable,
    TimeLimitExceeded,
    WorkerLost,
)
from omni_jobs.retry import LONGEST_DELAY_S, RetryLimits, is_last_chance, retry_delay

MANY = RetryLimits(worker_lost=100, out_of_memory=100, storage=100, model_error=100, time_limit=100)


def test_bad_input_is_final_whatever_the_limits() -> None:
    for error in (PayloadCorrupt(), ObjectCorrupt()):
        assert retry_delay(error, {"other": 1}, MANY) is None


def test_each_class_has_its_own_limit() -> None:
    limits = RetryLimits(worker_lost=0, out_of_memory=1, storage=2)
    assert retry_delay(WorkerLost(), {"worker_lost": 1}, limits) is None
    assert retry_delay(OutOfMemory(), {"out_of_memory": 1, "storage": 7}, limits) == 1.0
    assert retry_delay(OutOfMemory(), {"out_of_memory": 2}, limits) is None
    assert retry_delay(StorageUnavailable(), {"storage": 2, "out_of_memory": 9}, limits) == 2.0


def test_by_default_the_model_s_errors_and_time_limits_are_final() -> None:
    assert retry_delay(ModelError(), {"model_error": 1}, RetryLimits()) is None
    assert retry_delay(TimeLimitExceeded(), {"time_limit": 1}, RetryLimits()) is None
    assert retry_delay(ModelError(), {"model_error": 1}, RetryLimits(model_error=1)) == 1.0


def test_waits_grow_up_to_a_bound() -> None:
    delays = [retry_delay(OutOfMemory(), {"out_of_memory": n}, MANY) for n in range(1, 5)]
    assert delays == [1.0, 2.0, 4.0, 8.0]
    assert retry_delay(OutOfMemory(), {"out_of_memory": 99}, MANY) == LONGEST_DELAY_S


def test_a_lost_worker_costs_no_time_and_a_dead_engine_is_one() -> None:
    assert retry_delay(WorkerLost(), {"worker_lost": 2}, RetryLimits()) == 0.0
    assert retry_delay(EngineDead(), {"worker_lost": 3}, RetryLimits()) == 0.0
    assert retry_delay(EngineDead(), {"worker_lost": 4}, RetryLimits()) is None


def test_the_last_chance_is_the_one_before_quarantine() -> None:
    limits = RetryLimits(worker_lost=2)
    assert [is_last_chance({"worker_lost": n}, limits) for n in range(4)] == [False, False, True, True]
    assert not is_last_chance({}, RetryLimits(worker_lost=0))
    assert [is_last_chance({"fenced": n}, RetryLimits(fenced=2)) for n in range(4)] == [False, False, True, True]


def test_what_fences_its_workers_goes_on_at_once_and_not_for_ever() -> None:
    assert retry_delay(Fenced(), {"fenced": 10}, RetryLimits()) == 0.0
    assert retry_delay(Fenced(), {"fenced": 11}, RetryLimits()) is None


def test_limits_are_checked() -> None:
    for wrong in ({"worker_lost": -1}, {"worker_lost": 101}, {"typo": 1}):
        with pytest.raises(ValidationError):
            RetryLimits(**wrong)
