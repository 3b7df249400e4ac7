"""The charts: each sample counts at its point, few stages have their own lines, and times without samples are gaps."""

import json

from omni_jobs.dashboard.charts import MOST_LINES, charts_of
from omni_jobs.jobs import StageName, StageSample, StageStanding
from omni_jobs.metrics.stage_stats import Histogram, StageStats


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
