"""The overview: each pipeline as a drawing of its stages and how loaded they are, the workers, the newest jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from fastapi import APIRouter, Response

from omni_jobs.api.stage_loads import is_shown_picture, stage_loads, without_long_progress
from omni_jobs.dashboard.charts import charts_fragment
from omni_jobs.dashboard.drawing import BOX_HEIGHT, BOX_WIDTH, RATED_HEIGHT, Drawing, drawn
from omni_jobs.dashboard.fragments import POLLED_S, Fragment
from omni_jobs.dashboard.needs_a_person import needs_of
from omni_jobs.dashboard.over import Over
from omni_jobs.dashboard.page_route import PageRoute
from omni_jobs.dashboard.rates import Rate, rates_of
from omni_jobs.dashboard.troubles import ENGINE_DOWN, NO_WORKER, reason_of, trouble_of
from omni_jobs.dashboard.visit import Looks, Visit
from omni_jobs.http.path_prefix import below
from omni_jobs.http.process import short_switch_interval
from omni_jobs.jobs import FINE_S, JobFilter, StageName
from omni_jobs.views import JobView, StageLoad

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_NEWEST: Final = 12
RATED_S: Final = 70.0
"""The time of a stage's rate: six samples of ten seconds, and the one that goes on."""


@dataclass(frozen=True, slots=True)
class StageBox:
    """A stage in the drawing of its pipeline. ``trouble``: why it stands still; None: it does not."""

    load: StageLoad
    x: int
    y: int
    trouble: str | None
    rate: Rate | None  # of the last minute; None: nothing has ended, or the caller does not see it


@dataclass(frozen=True, slots=True)
class PipelineDrawing:
    """A pipeline with its stages as they are now; or one of several versions that have workers or work."""

    name: str
    title: str  # NAME, or NAME@VERSION where versions are told apart
    is_draining: bool
    drawing: Drawing
    boxes: Sequence[StageBox]

    @property
    def is_quiet(self) -> bool:
        """Whether it has neither workers nor work."""
        return not any(self.work) and not any(box.load.workers for box in self.boxes)

    @property
    def work(self) -> tuple[int, int]:
        """Its stage runs that wait in a queue, and those that run."""
        return sum(box.load.queued for box in self.boxes), sum(box.load.running for box in self.boxes)

    @property
    def has_trouble(self) -> bool:
        """Whether one of its stages stands still."""
        return any(box.trouble for box in self.boxes)


@router.get("/")
async def overview(visit: Looks, over: Over = Over.HOUR) -> Response:
    """Show the overview."""
    return await visit.page(
        "overview",
        "Overview",
        content=await _content(visit),
        charts=await charts_fragment(visit, over) if visit.caller.operates else None,
        newest=await _newest(visit),
        over=over,
    )


@router.get("/fragments/overview")
async def overview_content(visit: Looks) -> Response:
    """Return what of the stages changes."""
    return visit.answer(await _content(visit))


@router.get("/fragments/newest")
async def newest_content(visit: Looks) -> Response:
    """Return the newest jobs, and the workers."""
    return visit.answer(await _newest(visit))


async def _content(visit: Visit) -> Fragment:
    broker_is_away = visit.caller.operates and visit.services.readiness.broker_is_away()
    return await visit.fragment(
        "overview", lambda: _read_stages(visit, broker_is_away), broker_is_away, kept_s=POLLED_S
    )


async def _newest(visit: Visit) -> Fragment:
    return await visit.fragment("newest", lambda: _read_newest(visit), kept_s=POLLED_S)


def _read_stages(visit: Visit, broker_is_away: bool) -> Mapping[str, Any]:
    services, caller = visit.services, visit.caller
    with short_switch_interval():
        counts = services.jobs.counts(None if caller.operates else caller.sees)
        # The number of jobs leads to their list, which has the caller's own.
        own = services.jobs.counts(caller.sees) if caller.operates and caller.sees is not None else counts
        workers = list(services.jobs.workers())
        paused, down = services.jobs.paused_stages(), services.jobs.down_engines()
        loads = stage_loads(services.pipelines, counts, workers, paused, down, services.jobs.known_versions())
        reasons = services.jobs.wait_reasons(caller.sees)
        now = datetime.now(UTC)
        until = now.timestamp()
        # What all stages do tells of other tenants' jobs.
        samples = services.jobs.stage_samples(FINE_S, until - RATED_S, until) if caller.operates else []
        rates = rates_of(samples)
        height = RATED_HEIGHT if rates else BOX_HEIGHT
        pipelines = _drawings(visit, loads, reasons, rates, height)
        without_worker = [
            box.load for each in pipelines for box in each.boxes if box.trouble in (NO_WORKER, ENGINE_DOWN)
        ]
        needs = needs_of(services, caller, now, workers, without_worker, broker_is_away=broker_is_away)
    return {
        "jobs": own.jobs,
        "needs": needs,
        "busy": [each for each in pipelines if not each.is_quiet],
        "quiet": [each for each in pipelines if each.is_quiet],
        "box_width": BOX_WIDTH,
        "box_height": height,
    }


def _read_newest(visit: Visit) -> Mapping[str, Any]:
    services, caller = visit.services, visit.caller
    with short_switch_interval():
        workers = list(services.jobs.workers())
        newest = services.jobs.list(JobFilter(tenant=caller.sees), limit=_NEWEST, brief=True).jobs
    return {
        "now": datetime.now(UTC),
        "has_workers": bool(workers),
        "workers": workers if caller.operates else [],
        "newest": [below(visit.root, _short(job)) for job in newest],
        "is_shown_picture": is_shown_picture,
    }


def _drawings(
    visit: Visit,
    loads: Sequence[StageLoad],
    reasons: Mapping[tuple[str, str, str], str],
    rates: Mapping[StageName, Rate],
    box_height: int,
) -> list[PipelineDrawing]:
    """Return the pipelines: those in trouble first, then those with work, then those with workers."""
    served = visit.services.pipelines
    of_pipelines: dict[str, list[StageLoad]] = {}
    for load in loads:
        of_pipelines.setdefault(load.reference, []).append(load)
    pipelines = []
    for title, its_loads in of_pipelines.items():
        name = its_loads[0].pipeline
        file = served.get(name) if title == name else served.find(title)
        stages = {} if file is None else file.stages
        inputs = {load.stage: list(stages[load.stage].inputs) if load.stage in stages else [] for load in its_loads}
        drawing = drawn(inputs, box_height)
        by_stage = {load.stage: load for load in its_loads}
        boxes = [
            StageBox(
                load,
                box.x,
                box.y,
                trouble_of(load, reason_of(load, reasons), is_served=file is not None),
                # Rates are those of all versions.
                rates.get(StageName(name, box.stage)) if load.version is None else None,
            )
            for box in drawing.boxes
            for load in [by_stage[box.stage]]
        ]
        pipelines.append(PipelineDrawing(name, title, its_loads[0].draining, drawing, boxes))
    return sorted(pipelines, key=lambda each: (not each.has_trouble, not any(each.work), each.is_quiet, each.title))


def _short(job: JobView) -> JobView:
    return job.model_copy(update={"stages": [without_long_progress(stage) for stage in job.stages]})
