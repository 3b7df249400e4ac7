"""The page of stages: how loaded each is, what it keeps for high jobs, why it stands still; pause and resume."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Response

from omni_jobs.api.stage_loads import stage_loads
from omni_jobs.api.stage_pauses import set_paused
from omni_jobs.dashboard.fragments import Fragment
from omni_jobs.dashboard.overview import RATED_S
from omni_jobs.dashboard.page_route import PageRoute
from omni_jobs.dashboard.rates import Rate, rates_of
from omni_jobs.dashboard.troubles import reason_of, trouble_of
from omni_jobs.dashboard.visit import Looks, Operates, Visit
from omni_jobs.http.process import short_switch_interval
from omni_jobs.jobs import FINE_S, StageName
from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
from omni_jobs.views import CalibrationView, StageLoad

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@dataclass(frozen=True, slots=True)
class ShownStage:
    """A stage: its load, its settings here (None: not served here), why it stands still, its estimates, its rate.

    ``rate`` is that of the last minute; None: nothing has ended, or the caller does not see it.
    """

    load: StageLoad
    config: StageConfig | None
    target: str  # what its button pauses or resumes: NAME, or NAME@VERSION where versions are told apart
    paused_at: datetime | None
    trouble: str | None
    calibration: CalibrationView | None
    rate: Rate | None


@dataclass(frozen=True, slots=True)
class PipelineStages:
    """The stages of a pipeline, in the order of its file; or those of one of several versions with workers or work."""

    title: str  # NAME, or NAME@VERSION where versions are told apart
    pipeline: Pipeline | None  # None: not served here
    lines: Sequence[ShownStage]

    @property
    def is_draining(self) -> bool:
        """Whether it is a version that takes no new jobs."""
        return any(line.load.draining for line in self.lines)

    @property
    def left(self) -> int:
        """Its stage runs that have not ended."""
        return sum(line.load.queued + line.load.running + line.load.pending for line in self.lines)

    @property
    def is_quiet(self) -> bool:
        """Whether it has neither workers nor work, and nothing is paused."""
        loads = [line.load for line in self.lines]
        return not any(each.workers or each.queued or each.running or each.pending or each.paused for each in loads)


@router.get("/stages")
async def show_stages(visit: Looks) -> Response:
    """Show the stages."""
    return await visit.page("stages", "Stages", content=await _content(visit))


@router.get("/fragments/stages")
async def stages_content(visit: Looks) -> Response:
    """Return what of the page changes."""
    return visit.answer(await _content(visit))


async def _content(visit: Visit) -> Fragment:
    return await visit.fragment("stages", lambda: _read(visit))


def _read(visit: Visit) -> Mapping[str, Any]:
    services, operates = visit.services, visit.caller.operates
    with short_switch_interval():
        counts = services.jobs.counts(None if operates else visit.caller.sees)
        paused = services.jobs.paused_stages()
        workers, down = services.jobs.workers(), services.jobs.down_engines()
        loads = stage_loads(services.pipelines, counts, workers, paused, down, services.jobs.known_versions())
        reasons = services.jobs.wait_reasons(visit.caller.sees)
        calibrations = services.jobs.calibrations() if operates else []
        until = datetime.now(UTC).timestamp()
        # What all stages do tells of other tenants' jobs.
        samples = services.jobs.stage_samples(FINE_S, until - RATED_S, until) if operates else []
    rates = rates_of(samples)
    estimates = {(each.pipeline, each.stage): each for each in calibrations}
    of_pipelines: dict[str, list[ShownStage]] = {}
    files: dict[str, Pipeline | None] = {}
    for load in loads:
        find = services.pipelines.get if load.version is None else services.pipelines.find
        served = find(load.reference)
        files[load.reference] = served
        place = (load.pipeline, load.stage)
        since = [at for (reference, stage), at in paused.items() if stage == load.stage and _holds(reference, load)]
        paused_at = datetime.fromtimestamp(min(since), UTC) if load.paused and since else None
        config = None if served is None else served.stages.get(load.stage)
        trouble = trouble_of(load, reason_of(load, reasons), is_served=served is not None)
        rate = rates.get(StageName(*place)) if load.version is None else None  # rates are those of all versions
        target = load.pipeline if place in paused else load.reference
        line = ShownStage(load, config, target, paused_at, trouble, estimates.get(place), rate)
        of_pipelines.setdefault(load.reference, []).append(line)
    pipelines = [PipelineStages(title, files[title], its) for title, its in of_pipelines.items()]
    return {
        "now": datetime.now(UTC),
        "operates": operates,
        "busy": [each for each in pipelines if not each.is_quiet],
        "quiet": [each for each in pipelines if each.is_quiet],
    }


def _holds(reference: str, load: StageLoad) -> bool:
    """Return whether a pause of this NAME or NAME@VERSION holds a load, or a version of those that it counts."""
    is_any = load.version is None and reference.startswith(f"{load.pipeline}@")
    return is_any or reference in (load.pipeline, load.reference)


@router.post("/stages/{pipeline}/{stage}/pause")
async def pause_stage(visit: Operates, pipeline: str, stage: str) -> Response:
    """Pause a stage."""
    return await _set(visit, pipeline, stage, paused=True)


@router.post("/stages/{pipeline}/{stage}/resume")
async def resume_stage(visit: Operates, pipeline: str, stage: str) -> Response:
    """Resume a stage."""
    return await _set(visit, pipeline, stage, paused=False)


async def _set(visit: Visit, pipeline: str, stage: str, *, paused: bool) -> Response:
    await run_sync(partial(set_paused, visit.services, visit.caller, pipeline, stage, paused=paused))
    return visit.moved("/stages")
