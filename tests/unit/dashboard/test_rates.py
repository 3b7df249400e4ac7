"""The rates of stages: what ended in a second, of all samples together."""

import pytest

from omni_jobs.dashboard.rates import Rate, rates_of
from omni_jobs.jobs import StageName, StageSample, StageStanding
from omni_jobs.metrics.stage_stats import StageStats

NAME = StageName("echo", "first")


def sample(at: int, span_s: float = 10.0, **ended: int) -> StageSample:
    return StageSample(NAME, at, span_s, StageStanding(), StageStats({}, ended))


def test_samples_add_up_and_what_was_handed_back_is_no_error() -> None:
    rates = rates_of([sample(0, completed=30, released=10), sample(10, completed=50, model_error=8, lost=2)])
    assert rates == {NAME: Rate(per_s=4.0, failed=0.1)}


def test_a_stage_that_ended_nothing_has_no_rate() -> None:
    assert rates_of([sample(0), sample(10)]) == {}
    assert rates_of([]) == {}


@pytest.mark.parametrize(
    ("per_s", "expected"), [(1234.5, "1,234.5/s"), (1.0, "1.0/s"), (0.5, "30.0/min"), (0.001, "3.6/h"), (0.0, "0.0/h")]
)
def test_a_rate_has_the_unit_that_a_person_says(per_s: float, expected: str) -> None:
    assert Rate(per_s, 0.0).text == expected
