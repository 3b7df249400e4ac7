"""What stage runs have of a worker's devices: together the time in which its engine was busy, times the devices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.execution.device_time import DeviceTime


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_one_alone_has_all_and_several_have_a_share_each() -> None:
    clock = Clock()
    time = DeviceTime(2, clock)
    clock.now += 5  # nobody's
    first, second = time.taken_by(1), time.taken_by(2)
    first.__enter__()
    clock.now += 3
    second.__enter__()
    clock.now += 4
    assert (time.of(1), time.of(2)) == (2 * 5, 2 * 2)
    first.__exit__(None, None, None)
    clock.now += 1
    assert (time.of(1), time.of(2)) == (2 * 5, 2 * 3)
    second.__exit__(None, None, None)
    clock.now += 7
    assert (time.of(1), time.of(2)) == (2 * 5, 2 * 3)
    time.forget(1)
    assert (time.of(1), time.of(2), time.of(3)) == (0, 2 * 3, 0)


def test_a_stage_run_that_comes_back_goes_on_and_one_that_is_there_twice_counts_once() -> None:
    clock = Clock()
    time = DeviceTime(1, clock)
    for _ in range(2):
        with time.taken_by(1):
            clock.now += 1
            with time.taken_by(1):
                clock.now += 1
            clock.now += 1
    assert time.of(1) == 6


def test_without_a_device_there_is_no_time() -> None:
    clock = Clock()
    time = DeviceTime(0, clock)
    with time.taken_by(1):
        clock.now += 1
    assert time.of(1) == 0


@given(st.lists(st.tuples(st.integers(1, 4), st.floats(0, 10)), max_size=40))
def test_together_they_have_the_time_in_which_the_engine_was_busy(steps: list[tuple[int, float]]) -> None:
    clock = Clock()
    time = DeviceTime(1, clock)
    inside: dict[int, object] = {}
    busy = 0.0
    for stage_run, pause in steps:
        clock.now += pause
        busy += pause if inside else 0.0
        if (leaving := inside.pop(stage_run, None)) is not None:
            leaving.__exit__(None, None, None)  # type: ignore[attr-defined]
        else:
            taking = time.taken_by(stage_run)
            taking.__enter__()
            inside[stage_run] = taking
        assert sum(time.of(each) for each in range(1, 5)) == pytest.approx(busy)
