"""How many workers a stage should have: the rule follows a burst, does not flap, and counts what loads."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_jobs.jobs import StageNeed, wanted_workers

SLOTS = 8


def need(**changes: Any) -> StageNeed:
    nothing: dict[str, Any] = {"waiting": 0, "running": 0, "serving": 0, "loading": 0, "slots": SLOTS, "run_s": None}
    return StageNeed(**{**nothing, **changes})


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, 0),
        ({"serving": 3}, 0),
        ({"waiting": 1}, 1),
        ({"waiting": 100}, 13),
        ({"waiting": 100, "run_s": 6.0}, 2),  # a slot takes ten of them in a minute
        ({"waiting": 100, "run_s": 600.0}, 13),  # never more than a slot each
        ({"waiting": 100, "running": 16, "serving": 2, "run_s": 6.0}, 4),
        ({"running": 8, "serving": 1}, 1),
        ({"running": 9, "serving": 2}, 2),
        ({"running": 10, "serving": 1}, 1),  # two of them in slots that are kept for high jobs
        ({"running": 10, "serving": 1, "loading": 1}, 2),
    ],
    ids=str,
)
def test_a_burst_is_followed(changes: dict[str, Any], wanted: int) -> None:
    assert wanted_workers(need(**changes), 60.0) == wanted


def test_workers_that_load_are_counted_for_what_waits_and_not_beside_it() -> None:
    assert wanted_workers(need(waiting=100, loading=13), 60.0) == 13
    assert wanted_workers(need(waiting=100, running=8, serving=1, loading=13), 60.0) == 14
    assert wanted_workers(need(running=8, serving=1, loading=13), 60.0) == 14, "others were quicker"
    assert wanted_workers(need(serving=14), 60.0) == 0


def test_a_worker_goes_only_once_the_others_have_room_to_spare() -> None:
    wanted = [wanted_workers(need(running=running, serving=4), 60.0) for running in (32, 26, 25, 20, 19, 12, 7, 6)]
    assert wanted == [4, 4, 4, 4, 3, 2, 2, 1]


def test_a_load_about_a_limit_changes_nothing() -> None:
    workers = 3
    seen = set()
    for running in (24, 25, 24, 23, 25, 22, 24) * 3:
        waiting = max(0, running - workers * SLOTS)
        workers = wanted_workers(need(running=running - waiting, waiting=waiting, serving=workers), 60.0)
        seen.add(workers)
    assert seen == {3, 4}
    assert workers == 4, "it went up once, and stayed"


def test_a_paused_stage_keeps_its_workers() -> None:
    assert wanted_workers(need(waiting=100, serving=2, loading=1, is_paused=True), 60.0) == 3


needs = st.builds(
    StageNeed,
    waiting=st.integers(0, 10**7),
    running=st.integers(0, 10**4),
    serving=st.integers(0, 500),
    loading=st.integers(0, 500),
    slots=st.sampled_from([1, 1.5, 3, 8, 64]),
    run_s=st.none() | st.floats(1e-4, 1e4),
    is_paused=st.just(False),
)
waits = st.sampled_from([1.0, 60.0, 3600.0])


@given(needs, waits)
def test_who_does_what_is_wanted_is_asked_for_nothing_more(need: StageNeed, wait_s: float) -> None:
    """The new workers load, while what waited still waits: that must not ask for further ones, and so on for ever."""
    wanted = wanted_workers(need, wait_s)
    then = need._replace(serving=min(wanted, need.serving), loading=max(0, wanted - need.serving))
    assert wanted_workers(then, wait_s) <= wanted


@given(needs, waits)
def test_more_work_never_wants_fewer_workers(need: StageNeed, wait_s: float) -> None:
    wanted = wanted_workers(need, wait_s)
    assert wanted_workers(need._replace(waiting=need.waiting + 1), wait_s) >= wanted
    assert wanted_workers(need._replace(running=need.running + 1), wait_s) >= wanted
    assert wanted_workers(need, wait_s / 2) >= wanted


@given(needs, waits)
def test_there_is_a_worker_for_what_there_is_and_never_more_than_a_slot_each(need: StageNeed, wait_s: float) -> None:
    wanted = wanted_workers(need, wait_s)
    assert wanted >= need.loading
    assert wanted > 0 or need.waiting + min(need.running, need.serving) == 0
    most = math.ceil((need.running + max(need.waiting, need.loading * need.slots)) / need.slots)
    assert wanted <= max(most, need.serving + need.loading)
