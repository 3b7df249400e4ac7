"""How many workers a stage should have: the rule follows a burst, does not flap, and counts what loads.

At the end, what becomes of loads before workers that are started and stopped by it.
"""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.scaling import Seen, simulated
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
    assert wanted_workers(need(waiting=100, serving=2, loading=1, is_paused=True, drained=2), 60.0) == 5


needs = st.builds(
    StageNeed,
    waiting=st.integers(0, 10**7),
    running=st.integers(0, 10**4),
    serving=st.integers(0, 500),
    loading=st.integers(0, 500),
    slots=st.sampled_from([1, 1.5, 3, 8, 64]),
    run_s=st.none() | st.floats(1e-4, 1e4),
    is_paused=st.just(False),
    drained=st.integers(0, 20),
)
waits = st.sampled_from([1.0, 60.0, 3600.0])


@given(needs, waits)
def test_who_does_what_is_wanted_is_asked_for_nothing_more(need: StageNeed, wait_s: float) -> None:
    """The new workers load, while what waited still waits: that must not ask for further ones, and so on for ever."""
    wanted = wanted_workers(need, wait_s)
    serve = wanted - need.drained
    then = need._replace(serving=min(serve, need.serving), loading=max(0, serve - need.serving))
    assert wanted_workers(then, wait_s) <= wanted


@given(needs, waits)
def test_more_work_never_wants_fewer_workers(need: StageNeed, wait_s: float) -> None:
    wanted = wanted_workers(need, wait_s)
    assert wanted_workers(need._replace(waiting=need.waiting + 1), wait_s) >= wanted
    assert wanted_workers(need._replace(running=need.running + 1), wait_s) >= wanted
    assert wanted_workers(need, wait_s / 2) >= wanted


@given(needs, waits)
def test_there_is_a_worker_for_what_there_is_and_never_more_than_a_slot_each(need: StageNeed, wait_s: float) -> None:
    wanted = wanted_workers(need, wait_s) - need.drained
    assert wanted >= need.loading
    assert wanted > 0 or need.waiting + min(need.running, need.serving) == 0
    most = math.ceil((need.running + max(need.waiting, need.loading * need.slots)) / need.slots)
    assert wanted <= max(most, need.serving + need.loading)


LOAD_S = 90.0  # of a worker's model
RUN_S = 20.0
WAIT_S = 60.0


def played(submits: list[float], *, most: int = 1000) -> Seen:
    end_s = max(submits, default=0.0) + 4000
    return simulated(
        sorted(submits), end_s=end_s, run_s=RUN_S, load_s=LOAD_S, slots=SLOTS, wait_s=WAIT_S, every_s=15.0, most=most
    )


def test_a_burst_onto_no_worker_is_done_once_workers_are_loaded() -> None:
    seen = played([0.0] * 200)
    counts = [count for _, count in seen.workers]
    assert max(counts) == 25, "a slot each, because nobody knows how long a stage run takes"
    assert max(seen.waits) <= 15 + LOAD_S + 15
    assert (counts[-1], seen.turns) == (0, 1)


@pytest.mark.parametrize("rate", [0.2, 0.4, 0.41, 0.8, 2.05])
def test_a_steady_load_keeps_a_steady_number_of_workers(rate: float) -> None:
    """0.4 a second is just what one worker can do."""
    seen = played([each / rate for each in range(round(3600 * rate))])
    steady = {count for at, count in seen.workers if 900 < at < 3600}
    assert len(steady) <= 2, "about a limit it goes up once"
    assert math.ceil(rate * RUN_S / SLOTS) <= max(steady) <= math.ceil(rate * RUN_S / SLOTS / 0.8) + 1
    changes = [
        at
        for (at, one), (_, two) in zip(seen.workers, seen.workers[1:], strict=False)
        if 900 < at < 3600 and one != two
    ]
    assert len(changes) <= 1


loads = st.lists(st.floats(0, 3000), max_size=300)


@given(loads, st.integers(1, 10))
def test_every_job_of_any_load_is_started_and_no_worker_is_left(submits: list[float], most: int) -> None:
    seen = played(submits, most=most)
    assert len(seen.waits) == len(submits)
    assert all(math.isfinite(wait) for wait in seen.waits)
    assert seen.workers[-1][1] == 0
    assert max(count for _, count in seen.workers) <= most


@given(loads)
def test_with_workers_enough_no_job_waits_much_longer_than_a_load_and_what_was_asked(submits: list[float]) -> None:
    """A wait is at most: to the next look, a load, what may wait, and the run before."""
    seen = played(submits)
    assert max(seen.waits, default=0.0) <= 15 + LOAD_S + WAIT_S + RUN_S + 15
