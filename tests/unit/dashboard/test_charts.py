"""The charts: each sample counts at its point, few stages have their own lines, and times without samples are gaps."""

import json
from functools import reduce

from hypothesis import given, settings
from hypothesis import strategies as st

from omni_jobs.dashboard.charts import MOST_LINES, charts_of, points_of, stats_of
from omni_jobs.jobs import StageName, StageSample, StageStanding
from omni_jobs.metrics.stage_stats import BOUNDS, Histogram, StageStats


def sample(at: int, stage: str = "first", queued: float = 0.0, **ended: int) -> StageSample:
    stats = StageStats({"run": Histogram({"0.5": sum(ended.values())}, 1.0)} if ended else {}, ended)
    return StageSample(StageName("echo", stage), at, 10.0, StageStanding(queued=queued), stats)


def test_samples_count_at_their_points() -> None:
    samples = [sample(100, queued=4, completed=9), sample(110, queued=6, completed=1, model_error=2), sample(220)]
    charts = charts_of(samples, 100, 280, 60)
    times = [100, 160, 220]
    assert json.loads(charts.ended) == [times, [12, None, 0]]
    assert json.loads(charts.queued) == [times, [5, None, 0]]
    assert json.loads(charts.failed) == [times, [round(100 * 2 / 12, 2), None, None]]
    [line] = charts.lines
    assert (line.name, line.ended, round(line.failed, 3), line.waits) == ("echo.first", 12, 0.167, (None, None))
    assert line.runs[0] is not None
    assert 0.25 <= line.runs[0] <= 0.5


def test_the_stages_that_ended_least_are_one_line() -> None:
    samples = [sample(100, f"s{n}", queued=1, completed=n + 1) for n in range(MOST_LINES + 3)]
    charts = charts_of(samples, 100, 160, 60)
    assert [line.name for line in charts.lines] == [*(f"echo.s{n}" for n in range(10, 2, -1)), "others"]
    assert json.loads(charts.ended)[-1] == [1 + 2 + 3]
    assert json.loads(charts.queued)[-1] == [3]


def test_how_long_attempts_waited_and_ran_is_told_for_each_point() -> None:
    stats = StageStats(
        {"queue": Histogram({"1.0": 100}, 70.0), "run": Histogram({"10.0": 100}, 700.0)}, {"completed": 100}
    )
    counted = StageSample(StageName("echo", "first"), 100, 10.0, StageStanding(running=3), stats)
    charts = charts_of([counted, sample(220)], 100, 280, 60)
    assert json.loads(charts.running)[1] == [3, None, 0]
    assert json.loads(charts.waited_half)[1] == [0.75, None, None]
    assert json.loads(charts.waited_most)[1] == [0.975, None, None]
    assert json.loads(charts.ran_half)[1] == [7.5, None, None]
    assert json.loads(charts.ran_most)[1] == [9.75, None, None]


def test_what_was_counted_while_nobody_sampled_is_spread_over_that_time() -> None:
    counted = StageSample(StageName("echo", "first"), 100, 600.0, StageStanding(), StageStats({}, {"completed": 600}))
    assert json.loads(charts_of([counted], 100, 160, 60).ended)[1] == [60]


def test_an_attempt_that_somebody_cancelled_has_not_failed() -> None:
    [line] = charts_of(
        [sample(100, completed=6, job_cancelled=1, released=1, lost=1, model_error=1)], 100, 160, 60
    ).lines
    assert line.failed == 0.2


counts = st.dictionaries(st.sampled_from([*map(str, BOUNDS), "inf"]), st.integers(1, 50), max_size=4)
histograms = st.builds(Histogram, counts, st.integers(0, 90).map(float))
ended = st.dictionaries(st.sampled_from(["completed", "released", "lost"]), st.integers(1, 9))
stats = st.builds(StageStats, st.dictionaries(st.sampled_from(["queue", "run"]), histograms), ended)
many = st.dictionaries(st.tuples(st.sampled_from("abc"), st.integers(0, 23)), stats, max_size=30).map(
    lambda found: [
        StageSample(StageName("echo", stage), 3000 + 10 * number, 10.0, StageStanding(), its)
        for (stage, number), its in found.items()
    ]
)


@settings(max_examples=50)
@given(many)
def test_the_points_have_together_what_all_samples_have(samples: list[StageSample]) -> None:
    stages = points_of(samples, 3000, 60)
    for name, points in stages.items():
        its = reduce(StageStats.plus, (each.stats for each in samples if each.name == name))
        whole = stats_of(points.values())
        assert whole.ended == its.ended
        assert sum(each.span_s for each in points.values()) == 10 * sum(each.name == name for each in samples)
        for step, seconds in its.seconds.items():
            assert [whole.seconds[step].quantile(share) for share in (0.5, 0.95)] == [
                seconds.quantile(share) for share in (0.5, 0.95)
            ]
    assert {name for name, points in stages.items() if points} == {each.name for each in samples}
