from types import SimpleNamespace
from typing import cast

import pytest

from omni_jobs.errors import ModelError
from omni_jobs.jobs import Claim, Completion, Failure, Release
from workers.execution.observers import run_times
from workers.execution.observers.run_times import RunTimes


def test_what_is_handed_back_says_nothing_of_how_long_runs_take(monkeypatch: pytest.MonkeyPatch) -> None:
    times = RunTimes()
    now = iter([0.0, 2.0, 5.0, 9.0])
    monkeypatch.setattr(run_times, "time", SimpleNamespace(monotonic=lambda: next(now)))
    times.claimed([cast(Claim, SimpleNamespace(stage_run_id=number)) for number in range(3)])
    for report in (Completion(0, 1, "w"), Release(1, 1, "w"), Failure(2, 1, "w", ModelError("no"))):
        times.ended([report], [])
    assert times.mean(9.0) == (2.0 + 9.0) / 2


def test_nobody_knows_before_the_first_end() -> None:
    assert RunTimes().mean(0) is None


def test_the_mean_of_what_ended_within_a_minute() -> None:
    times = RunTimes()
    for at in range(100):
        times.note(at, 9.0)
    for at in range(200, 220):
        times.note(at, 1.0)
    assert times.mean(220) == 1.0


def test_what_ended_long_ago_counts_no_more_though_nothing_has_ended_since() -> None:
    times = RunTimes()
    for number in range(100):
        times.note(number / 10, 1.0 if number < 84 else 9.0)
    assert times.mean(10) == (84 * 1.0 + 16 * 9.0) / 100, "all of them"
    assert times.mean(1000) == 9.0, "the last 16"


def test_a_few_count_however_long_ago_they_ended() -> None:
    times = RunTimes()
    for at in (0, 1000, 2000):
        times.note(at, at + 1.0)
    assert times.mean(9000) == 1001.0


def test_of_very_many_the_newest_count() -> None:
    times = RunTimes()
    for number in range(5000):
        times.note(0.0, 1.0 if number < 3000 else 2.0)
    assert times.mean(0) == 2.0
