from pathlib import Path

import pytest

from omni_jobs.stack import readiness
from omni_jobs.stack.child import API, RESCUER, Child
from omni_jobs.stack.readiness import ChildWatch

LIMIT_S = 6.0


class Clock:
    """What the watch sees as ``time.monotonic``."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(readiness, "time", clock)
    return clock


@pytest.fixture
def children(tmp_path: Path) -> dict[str, Child]:
    """Children that serve, as far as their supervisor has seen."""
    made = {}
    for name, pipeline in ((API, None), (RESCUER, None), ("worker echo.first", "echo")):
        child = Child(
            name, ["true"], environment={}, directory=tmp_path, log=tmp_path / "log", pass_fds=(), pipeline=pipeline
        )
        child.start(lambda pid: None)
        child.mark_ready()
        made[name] = child
    return made


def seconds_until_all_hang(watch: ChildWatch, clock: Clock, pause_s: float) -> dict[str, float]:
    """Check again and again; return how long each child went on until it counted as one that hangs."""
    began = clock.now
    found: dict[str, float] = {}
    while len(found) < 3:
        clock.now += pause_s
        for child, _ in watch.hanging():
            found.setdefault(child.name, clock.now - began)
        assert clock.now < began + 1000
    return found


def test_what_fails_its_checks_for_long_hangs(children: dict[str, Child], clock: Clock) -> None:
    watch = ChildWatch(list(children.values()), lambda child: False, LIMIT_S)
    assert (watch.check_s, watch.is_due) == (2.0, False)
    clock.now += 2.0
    assert watch.is_due
    assert seconds_until_all_hang(watch, clock, 2.0) == {API: 6.0 - 2.0, RESCUER: 18.0 - 2.0, "worker echo.first": 16.0}


def test_one_good_check_and_another_process_begin_anew(children: dict[str, Child], clock: Clock) -> None:
    answers = iter([False, False, True, False, False, False])
    watch = ChildWatch([children[API]], lambda child: next(answers), LIMIT_S)
    found = []
    for _ in range(6):
        clock.now += 2.0
        found.append(bool(watch.hanging()))
    assert found == [False] * 5 + [True]
    watch = ChildWatch([children[API]], lambda child: False, LIMIT_S)
    for _ in range(2):
        clock.now += 2.0
        assert watch.hanging() == []
    children[API].start(lambda pid: None)
    clock.now += 2.0
    assert watch.hanging() == []  # it starts
    children[API].mark_ready()
    clock.now += 2.0
    assert watch.hanging() == []


def test_a_pause_of_the_whole_machine_blames_nobody(children: dict[str, Child], clock: Clock) -> None:
    watch = ChildWatch(list(children.values()), lambda child: False, LIMIT_S)
    clock.now += 3600.0
    assert watch.hanging() == []
