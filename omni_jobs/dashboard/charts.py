"""The charts of the overview: how each stage stood and what it did, over an hour, a day, a week or a month.

Only operators see them, because what all stages do tells of other tenants' jobs.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial, reduce
from typing import Any, Final, Literal, NamedTuple

from fastapi import APIRouter, Response

from omni_jobs.dashboard.fragments import Fragment
from omni_jobs.dashboard.over import Over
from omni_jobs.dashboard.page_route import PageRoute
from omni_jobs.dashboard.rates import failed_of
from omni_jobs.dashboard.visit import Operates, Visit
from omni_jobs.errors import InvalidRequest
from omni_jobs.http.process import short_switch_interval
from omni_jobs.jobs import COARSE_S, FINE_S, LONG_S, StageName, StageSample
from omni_jobs.metrics.stage_stats import Histogram, StageStats

router = APIRouter(route_class=PageRoute, include_in_schema=False)

MOST_LINES: Final = 8
"""The most stages that have a line of their own: those that ended most. The others are one line together."""

_OTHERS: Final = "others"
_MOST_KEPT_S: Final = 60.0


class _Scale(NamedTuple):
    step_s: Literal[10, 300, 7200]  # of the samples
    point_s: int  # of the time that a point stands for
    again_s: int  # after which a page asks again


_SCALES: Final[Mapping[Over, _Scale]] = {
    Over.HOUR: _Scale(FINE_S, 60, 10),
    Over.DAY: _Scale(COARSE_S, 900, 60),
    Over.WEEK: _Scale(LONG_S, 7200, 300),
    Over.MONTH: _Scale(LONG_S, 21_600, 600),
}


_Points = Mapping[int, StageSample]
"""The samples of a stage, added up to one of each point, by its number."""


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A stage over the whole time. The waits and runs are seconds that half, and 95 %, of them did not exceed."""

    name: str
    ended: int
    failed: float  # a share
    waits: tuple[float | None, float | None]
    runs: tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class Charts:
    """The charts. ``values`` of each are JSON: the times, in seconds since 1970, and the values of each line."""

    lines: Sequence[ChartLine]
    ended: str  # attempts a minute
    failed: str  # % of the attempts
    queued: str  # stage runs, in the mean
    running: str
    waited_half: str  # seconds that half of the attempts did not exceed
    waited_most: str  # and 95 % of them
    ran_half: str
    ran_most: str


def charts_of(samples: Sequence[StageSample], begin: int, end: int, point_s: int) -> Charts:
    """Return the charts of the samples that began in [begin, end), a point for each ``point_s`` seconds.

    A point without a sample is a gap. What was counted in more time than a point has, because nobody sampled before, is
    spread over that time.
    """
    stages = points_of(samples, begin, point_s)
    wholes = {name: stats_of(points.values()) for name, points in stages.items()}
    names = sorted(stages, key=lambda name: (-wholes[name].ends, name))
    groups = [[name] for name in names[:MOST_LINES]] + ([names[MOST_LINES:]] if names[MOST_LINES:] else [])
    points = range((end - begin) // point_s)
    times = [begin + point_s * point for point in points]

    def values(value: Callable[[Sequence[StageSample]], float | None]) -> str:
        lines: list[list[float | None]] = []
        for group in groups:
            known = [[stages[name][point] for name in group if point in stages[name]] for point in points]
            lines.append([value(each) if each else None for each in known])
        return json.dumps([times, *lines])

    def ended(known: Sequence[StageSample]) -> float:
        return round(60 * sum(each.stats.ends / max(point_s, each.span_s) for each in known), 2)

    return Charts(
        [_line(group, stats_of(each for name in group for each in stages[name].values())) for group in groups],
        ended=values(ended),
        failed=values(_failed),
        queued=values(lambda known: round(sum(each.standing.queued for each in known), 2)),
        running=values(lambda known: round(sum(each.standing.running for each in known), 2)),
        waited_half=values(partial(_seconds, "queue", 0.5)),
        waited_most=values(partial(_seconds, "queue", 0.95)),
        ran_half=values(partial(_seconds, "run", 0.5)),
        ran_most=values(partial(_seconds, "run", 0.95)),
    )


def points_of(samples: Iterable[StageSample], begin: int, point_s: int) -> Mapping[StageName, _Points]:
    """Return the samples of each stage, added up to points of ``point_s`` seconds from ``begin``."""
    stages: dict[StageName, dict[int, StageSample]] = {}
    for sample in samples:
        points = stages.setdefault(sample.name, {})
        point = (sample.at - begin) // point_s
        points[point] = points[point].plus(sample) if point in points else sample
    return stages


def stats_of(samples: Iterable[StageSample]) -> StageStats:
    """Return what all samples counted."""
    return reduce(StageStats.plus, (each.stats for each in samples), StageStats())


def _failed(known: Sequence[StageSample]) -> float | None:
    stats = stats_of(known)
    return round(100 * failed_of(stats) / stats.ends, 2) if stats.ends else None


def _seconds(step: str, share: float, known: Sequence[StageSample]) -> float | None:
    seconds = stats_of(known).seconds.get(step, Histogram()).quantile(share)
    return None if seconds is None else float(f"{seconds:.3g}")


def _line(group: Sequence[StageName], stats: StageStats) -> ChartLine:
    waits, runs = (
        (None, None) if (its := stats.seconds.get(step)) is None else (its.quantile(0.5), its.quantile(0.95))
        for step in ("queue", "run")
    )
    return ChartLine(
        f"{group[0].pipeline}.{group[0].stage}" if len(group) == 1 else _OTHERS,
        stats.ends,
        failed_of(stats) / stats.ends if stats.ends else 0.0,
        waits,
        runs,
    )


@router.get("/fragments/charts")
async def charts_content(visit: Operates, over: Over = Over.HOUR) -> Response:
    """Return the charts."""
    return visit.answer(await charts_fragment(visit, over))


async def charts_fragment(visit: Visit, over: Over) -> Fragment:
    """Return the charts of a time, rendered once for all who look until they may have changed."""
    scale = _SCALES[over]

    def read() -> Mapping[str, Any]:
        end = int(datetime.now(UTC).timestamp() // scale.point_s + 1) * scale.point_s
        begin = end - over.seconds
        charts, trouble = None, None
        with short_switch_interval():
            try:
                samples = visit.services.jobs.stage_samples(scale.step_s, begin, end)
                charts = charts_of(samples, begin, end, scale.point_s) if samples else None
            except InvalidRequest as error:  # there are more samples than one answer has
                trouble = error.message
        return {"charts": charts, "trouble": trouble, "over": over, "overs": list(Over), "again_s": scale.again_s}

    return await visit.fragment("charts", read, over, kept_s=min(scale.again_s, _MOST_KEPT_S))
