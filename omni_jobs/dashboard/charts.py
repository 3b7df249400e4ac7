"""The charts of the overview: what each stage ended, what failed, and what waited, over an hour, a day or a month.

Only operators see them, because what all stages do tells of other tenants' jobs.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple

from fastapi import APIRouter, Response

from omni_jobs.dashboard.fragments import Fragment
from omni_jobs.dashboard.page_route import PageRoute
from omni_jobs.dashboard.rates import failed_of
from omni_jobs.dashboard.visit import Operates, Visit
from omni_jobs.errors import InvalidRequest
from omni_jobs.http.process import short_switch_interval
from omni_jobs.jobs import StageName, StageSample

router = APIRouter(route_class=PageRoute, include_in_schema=False)

MOST_LINES: Final = 8
"""The most stages that have a line of their own: those that ended most. The others are one line together."""

_OTHERS: Final = "others"


class Over(StrEnum):
    """A time that the charts show."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


class _Scale(NamedTuple):
    step_s: Literal[10, 300]  # of the samples
    span_s: int
    point_s: int  # of the time that a point stands for
    again_s: int  # after which a page asks again


_SCALES: Final[Mapping[Over, _Scale]] = {
    Over.HOUR: _Scale(10, 3600, 60, 10),
    Over.DAY: _Scale(300, 86_400, 900, 60),
    Over.MONTH: _Scale(300, 30 * 86_400, 21_600, 600),
}


@dataclass(slots=True)
class _Points:
    """What the samples of a stage come to, by the number of a point."""

    whole: StageSample
    ended: dict[int, int] = field(default_factory=dict)
    failed: dict[int, int] = field(default_factory=dict)
    queued: dict[int, list[float]] = field(default_factory=dict)

    def add(self, point: int, sample: StageSample) -> None:
        self.ended[point] = self.ended.get(point, 0) + sample.stats.ends
        self.failed[point] = self.failed.get(point, 0) + failed_of(sample.stats)
        self.queued.setdefault(point, []).append(sample.standing.queued)


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


def charts_of(samples: Sequence[StageSample], begin: int, end: int, point_s: int) -> Charts:
    """Return the charts of the samples that began in [begin, end), a point for each ``point_s`` seconds."""
    stages: dict[StageName, _Points] = {}
    for sample in samples:
        known = stages.get(sample.name)
        if known is None:
            known = stages[sample.name] = _Points(sample)
        else:
            known.whole = known.whole.plus(sample)
        known.add((sample.at - begin) // point_s, sample)
    most = sorted(stages.values(), key=lambda each: (-each.whole.stats.ends, each.whole.name))
    shown, others = most[:MOST_LINES], most[MOST_LINES:]
    groups = [[each] for each in shown] + ([others] if others else [])
    points = range((end - begin) // point_s)
    times = [begin + point_s * point for point in points]

    def values(value: Any) -> str:
        return json.dumps([times, *([value(group, point) for point in points] for group in groups)])

    def ended(group: Sequence[_Points], point: int) -> float | None:
        known = [each.ended[point] for each in group if point in each.ended]
        return round(60 * sum(known) / point_s, 2) if known else None

    def failed(group: Sequence[_Points], point: int) -> float | None:
        count = sum(each.ended.get(point, 0) for each in group)
        return round(100 * sum(each.failed.get(point, 0) for each in group) / count, 2) if count else None

    def queued(group: Sequence[_Points], point: int) -> float | None:
        known = [each.queued[point] for each in group if point in each.queued]
        return round(sum(sum(each) / len(each) for each in known), 2) if known else None

    return Charts([_line(group) for group in groups], values(ended), values(failed), values(queued))


def _line(group: Sequence[_Points]) -> ChartLine:
    stats = group[0].whole.stats
    for each in group[1:]:
        stats = stats.plus(each.whole.stats)
    name = group[0].whole.name
    waits, runs = (
        (None, None) if (its := stats.seconds.get(step)) is None else (its.quantile(0.5), its.quantile(0.95))
        for step in ("queue", "run")
    )
    return ChartLine(
        f"{name.pipeline}.{name.stage}" if len(group) == 1 else _OTHERS,
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
    """Return the charts of a time, rendered."""
    scale = _SCALES[over]

    def read() -> Mapping[str, Any]:
        end = int(datetime.now(UTC).timestamp() // scale.point_s + 1) * scale.point_s
        begin = end - scale.span_s
        charts, trouble = None, None
        with short_switch_interval():
            try:
                samples = visit.services.jobs.stage_samples(scale.step_s, begin, end)
                charts = charts_of(samples, begin, end, scale.point_s) if samples else None
            except InvalidRequest as error:  # there are more samples than one answer has
                trouble = error.message
        return {"charts": charts, "trouble": trouble, "over": over, "overs": list(Over), "again_s": scale.again_s}

    return await visit.fragment("charts", read, over)
