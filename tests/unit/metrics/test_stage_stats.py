"""Counts of a stage: they add up, and differences and percentiles are those of the values that were counted."""

import json
import random

import pytest

from omni_jobs.metrics.stage_stats import BOUNDS, Histogram, StageStats, WorkerStats
from omni_jobs.metrics.worker_metrics import WorkerMetrics


def counted(values: list[float], ended: dict[str, int] | None = None) -> StageStats:
    """What a worker counts of stage runs that took so long."""
    metrics = WorkerMetrics("echo", "1", "first", 1)
    for value in values:
        metrics.observe("run", value)
    for result, number in (ended or {}).items():
        for _ in range(number):
            metrics.end(result)
    return metrics.stats().of_stage


def test_the_stats_of_a_worker_are_what_its_metrics_show() -> None:
    stats = counted([0.0005, 0.001, 0.3, 0.4, 9000.0], {"completed": 2, "model_error": 1})
    run = stats.seconds["run"]
    assert run.counts == {"0.001": 2, "0.5": 2, "inf": 1}
    assert (run.sum_s, stats.ended, stats.ends) == (9000.7015, {"completed": 2, "model_error": 1}, 3)
    assert list(stats.seconds) == ["run"], "nothing is kept of steps that none took"
    assert StageStats.of(stats.to_json()) == stats
    assert counted([]) == StageStats()


def test_a_clock_that_was_set_back_counts_as_no_time() -> None:
    assert counted([-5.0]).seconds["run"] == Histogram({"0.001": 1}, 0.0)


def test_a_runner_counts_nothing_but_the_fields_of_usage() -> None:
    metrics = WorkerMetrics("echo", "1", "first", 1)
    metrics.store(0, {"pictures": 2, "frames": float("nan"), "sound_s": -1.0, "tenant-a": 7})
    text = metrics.text().decode()
    assert 'omni_jobs_stage_made_total{pipeline="echo",stage="first",version="1",what="pictures"} 2.0' in text
    assert text.count("omni_jobs_stage_made_total{") == 1


@pytest.mark.parametrize("seed", range(5))
def test_what_came_between_two_counts_and_the_earlier_add_up_to_the_later(seed: int) -> None:
    draw = random.Random(seed)
    values = [draw.lognormvariate(0, 3) for _ in range(200)]
    early, late = counted(values[:80], {"completed": 3}), counted(values, {"completed": 5, "released": 1})
    between = late.since(early)
    assert between.seconds["run"].counts == counted(values[80:]).seconds["run"].counts
    assert between.ended == {"completed": 2, "released": 1}
    assert early.plus(between).ended == late.ended
    assert early.plus(between).seconds["run"].counts == late.seconds["run"].counts
    assert early.plus(between).seconds["run"].sum_s == pytest.approx(late.seconds["run"].sum_s)
    assert late.since(late) == StageStats()


def test_counts_that_fall_began_anew() -> None:
    assert counted([1.0], {"completed": 1}).since(counted([1.0, 2.0])) == counted([1.0], {"completed": 1})
    assert counted([], {"completed": 2}).since(counted([], {"lost": 1})) == counted([], {"completed": 2})


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.95, 0.99, 1.0])
def test_a_percentile_lies_in_the_bucket_of_the_value_itself(share: float) -> None:
    draw = random.Random(7)
    values = sorted(draw.lognormvariate(0, 2) for _ in range(1000))
    value = values[round(share * 1000) - 1]
    low = max((bound for bound in BOUNDS if bound < value), default=0.0)
    high = min(bound for bound in BOUNDS if bound >= value)
    told = counted(values).seconds["run"].quantile(share)
    assert told is not None
    assert low <= told <= high


def test_percentiles_at_the_ends() -> None:
    assert Histogram().quantile(0.5) is None
    assert counted([8000.0]).seconds["run"].quantile(0.5) == 7200.0, "the last bucket has no upper bound"
    assert counted([0.9] * 10).seconds["run"].quantile(0.5) == 0.75, "not below its bucket, though others are empty"


def test_a_row_of_a_worker_comes_back_as_it_was() -> None:
    metrics = WorkerMetrics("echo", "1", "first", 1)
    idle = metrics.stats()
    assert (idle.of_stage, idle.claimed_at) == (StageStats(), None)
    assert idle.memory_bytes is not None
    assert idle.memory_bytes % (16 << 20) == 0
    metrics.claim(1.5)
    metrics.end("completed")
    stats = metrics.stats()
    assert stats.claimed_at is not None
    assert WorkerStats.of(json.loads(json.dumps(stats.to_json()))) == stats
    assert WorkerStats.of({"what": "a later build keeps"}) == WorkerStats()
