import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_jobs.jobs.read.estimates import (
    COVERAGE,
    FIRST_FACTORS,
    RECENT,
    Factors,
    Interval,
    Tails,
    beyond,
    expected_s,
    factors,
    interval,
    ratio,
)
from omni_jobs.jobs.read.estimates import (
    coarse as coarse_of,
)

seconds = st.floats(0, 1e6)
points = st.floats(1e-3, 1e6)
ratios = st.lists(st.floats(1e-6, 1e6), max_size=300)
tails = st.builds(Tails, st.floats(0.002, 0.45), st.floats(0.002, 0.45))


@given(st.floats(0, 1e7), st.integers(-5, 1000), st.integers(1, 1000), st.floats(1e-4, 1e4))
def test_more_work_before_it_takes_longer_and_a_free_slot_takes_none(
    before: float, free: int, slots: int, run_s: float
) -> None:
    expected = expected_s(before, free, slots, run_s)
    assert 0 <= expected <= expected_s(before + 1, free, slots, run_s)
    assert expected_s(before, free, slots + 1, run_s) <= expected
    if before + 1 <= free:
        assert expected == 0


@given(points, ratios, tails)
def test_an_interval_has_its_ends_in_order(point_s: float, seen: list[float], share: Tails) -> None:
    low, high = interval(point_s, factors(seen, share))
    assert 0 <= low <= high


@given(points, points, ratios, tails)
def test_who_waits_for_more_is_told_no_earlier_times(a: float, b: float, seen: list[float], share: Tails) -> None:
    found = factors(seen, share)
    sooner, later = interval(min(a, b), found), interval(max(a, b), found)
    assert sooner.low_s <= later.low_s
    assert sooner.high_s <= later.high_s


@given(seconds, seconds, seconds)
def test_a_wait_is_beyond_one_end_at_most(waited_s: float, a: float, b: float) -> None:
    told = Interval(min(a, b), max(a, b))
    assert (beyond(waited_s, told) == 0) is (told.low_s <= waited_s <= told.high_s)


@given(st.lists(st.sampled_from((-1, 0, 1))))
def test_tails_stay_shares_whatever_happens(ends: list[int]) -> None:
    found = Tails()
    for end in ends:
        before, found = found, found.after(end)
        assert 0 < found.low < 0.5
        assert 0 < found.high < 0.5
        assert (found.low <= before.low) if end < 0 else (found.low >= before.low)
        assert (found.high <= before.high) if end > 0 else (found.high >= before.high)


def test_a_ratio_of_1_is_a_wait_as_expected() -> None:
    assert ratio(3.0, 3.0) == 1
    assert ratio(0.0, 0.0) == 1
    assert factors([1.0] * RECENT, Tails()) == Factors(1, 1)


def share_that_held(of: int, seed: int, drift: float, spread: float) -> float:
    """Waits that differ from the expected ones by a factor that drifts, each known before the next is told."""
    dice = random.Random(seed)
    found, share, seen, held = FIRST_FACTORS, Tails(), list[float](), 0
    centre = 0.0
    for _ in range(of):
        centre += dice.gauss(0, drift)
        point_s = dice.lognormvariate(2, 1)
        waited_s = point_s * 2.718 ** (centre + dice.gauss(0, spread))
        end = beyond(waited_s, interval(point_s, found))
        held += end == 0
        seen.append(ratio(waited_s, point_s))
        share = share.after(end)
        found = factors(seen[-RECENT:], share)
    return held / of


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.floats(0, 0.03), st.floats(0.1, 1.0))
def test_the_wanted_share_of_intervals_holds_whatever_drifts(seed: int, drift: float, spread: float) -> None:
    assert abs(share_that_held(1500, seed, drift, spread) - COVERAGE) < 0.05


@pytest.mark.parametrize(
    ("told", "coarse"),
    [
        ((0.0, 1.0), (0.0, 1.0)),
        ((0.9, 1.1), (0.0, 2.0)),
        ((1.0, 2.0), (1.0, 2.0)),
        ((21.3, 48.9), (20.0, 50.0)),
        ((499.0, 501.0), (200.0, 1000.0)),
        ((1e9, 2e9), (50_000_000.0, 2e9)),
    ],
)
def test_coarse_ends_lie_outwards(told: tuple[float, float], coarse: tuple[float, float]) -> None:
    assert coarse_of(Interval(*told)) == coarse
