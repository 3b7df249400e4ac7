from collections.abc import Callable

import pytest

from workers.offline.statistics import StageMeter, StageStatistics
from workers.stages.types import OmniModelRunnerOutput, Progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_nothing_yet(clock: Clock) -> None:
    found = StageMeter(clock).read()
    assert found == StageStatistics()
    assert (found.mean_run_s, found.units_per_s) == (0.0, 0.0)


def test_time_is_busy_once_however_many_run(clock: Clock) -> None:
    meter = StageMeter(clock)
    with meter.run() as first:
        clock.now += 1
        with meter.run() as second:
            clock.now += 2
            second(Progress(10, 20, "tokens"))
        first(Progress(5, None, "tokens"))
        assert meter.read().busy_s == 3
        assert meter.read().units == 15
        clock.now += 1
    clock.now += 50  # idle
    meter.count(OmniModelRunnerOutput(prompt_token_ids=[1, 2, 3]), payload_bytes=64)
    found = meter.read()
    assert (found.runs, found.failed, found.most_at_once) == (2, 0, 2)
    assert (found.busy_s, found.run_s, found.mean_run_s) == (4, 6, 3)
    assert (found.units, found.unit, found.units_per_s) == (15, "tokens", 15 / 4)
    assert (found.prompt_tokens, found.payload_bytes) == (3, 64)


def test_a_run_that_fails_is_counted_and_its_late_progress_is_not(clock: Clock) -> None:
    meter = StageMeter(clock)
    sinks: list[Callable[[Progress], None]] = []

    def fail() -> None:
        with meter.run() as seen:
            seen(Progress(4, 10, "steps"))
            sinks.append(seen)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    sinks[0](Progress(9, 10, "steps"))
    found = meter.read()
    assert (found.runs, found.failed, found.units, found.unit) == (1, 1, 4, "steps")
