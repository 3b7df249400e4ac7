"""The route of scaling: how many workers a stage should have, for a program that starts and stops them."""

from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query

from omni_jobs.api.job_filters import NAME, REFERENCE
from omni_jobs.api.needs import Administrator
from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.http.error_answers import errors
from omni_jobs.http.request_parameters import PlainNumber
from omni_jobs.identity import StageId
from omni_jobs.jobs import StageNeed, paused_since, wanted_workers
from omni_jobs.states import StageRunState
from omni_jobs.views import ScalingView

router = APIRouter(prefix="/v1/scaling", tags=["stages"])


@router.get("", responses=errors(403, 404, 503))
async def get_scaling(
    caller: Administrator,
    services: ServicesDep,
    pipeline: Annotated[str, Query(pattern=REFERENCE, description="NAME, or NAME@VERSION")],
    stage: Annotated[str, Query(pattern=NAME)],
    wait_s: Annotated[
        float, Query(ge=1, le=86_400, description="seconds that a stage run may wait"), PlainNumber
    ] = 60.0,
) -> ScalingView:
    """Get the number of workers that a stage of one version should have, and what it follows from.

    Without a version it is the newest that takes jobs; the answer says which. `wanted` is for an autoscaler: so many
    workers start what waits now within `wait_s` seconds. Counted are the stage runs of all tenants, so this needs the
    scope `admin`; the count of a very long backlog is some seconds old.
    """
    await services.versions.refresh()
    served = services.pipelines.named(pipeline, field="pipeline")
    config, stage_id = served.stage(stage), served.stage_id(stage)
    crew = await run_sync(services.jobs.stage_crew, stage_id)
    waiting = crew.waiting if crew.waiting is not None else await _backlog(services, stage_id)
    paused = await run_sync(services.jobs.paused_stages)
    is_paused = paused_since(paused, served.name, served.version, stage) is not None
    slots = max(1, config.slots - config.slots_for_high) if crew.slots is None else crew.slots
    need = StageNeed(
        waiting, crew.running, crew.serving, crew.loading, slots, crew.run_s, is_paused, drained=crew.drained
    )
    return ScalingView(
        pipeline=served.name,
        version=served.version,
        stage=stage,
        wanted=wanted_workers(need, wait_s),
        waiting=waiting,
        running=crew.running + crew.held_by_drained,
        workers=crew.serving,
        busy=crew.busy,
        loading=crew.loading,
        drained=crew.drained,
        run_s=crew.run_s,
        paused=is_paused,
    )


async def _backlog(services: Services, stage: StageId) -> int:
    """Return how many stage runs of a stage are queued; of a long backlog it is some seconds old."""
    counts = await services.counts(None).get()
    queued = [each for each in counts.stage_runs if each.state is StageRunState.QUEUED]
    wanted = (*stage.pipeline, stage.stage)
    return sum(each.count for each in queued if (each.pipeline, each.pipeline_digest, each.stage) == wanted)
