"""Routes of stages: pause and resume them, and how good the estimates of their waits have been."""

from typing import Annotated

from fastapi import APIRouter, Path

from omni_jobs.api.needs import Administrator
from omni_jobs.api.services import ServicesDep
from omni_jobs.api.stage_pauses import set_paused
from omni_jobs.http.error_answers import errors
from omni_jobs.views import CalibrationView, StagePauseView

Named = Annotated[str, Path(description="NAME, or NAME@VERSION")]

router = APIRouter(prefix="/v1", tags=["stages"])


@router.post("/pipelines/{name}/stages/{stage}/pause", responses=errors(403, 404, 503))
def pause_stage(caller: Administrator, name: Named, stage: str, services: ServicesDep) -> StagePauseView:
    """Pause a stage: its workers go on with what they run, and claim nothing more from their next heartbeat on.

    NAME is the stage of all versions, also of those that come; NAME@VERSION that of one alone. Jobs are taken as
    before, and wait. Deadlines and `queue_limit_s` go on. Pausing it again changes nothing.
    """
    return set_paused(services, caller, name, stage, paused=True)


@router.post("/pipelines/{name}/stages/{stage}/resume", responses=errors(403, 404, 503))
def resume_stage(caller: Administrator, name: Named, stage: str, services: ServicesDep) -> StagePauseView:
    """Resume a stage: its workers claim again from their next heartbeat on. Resuming it again changes nothing.

    NAME ends the pauses of all versions. NAME@VERSION ends that of one: while all are paused, it stays paused.
    """
    return set_paused(services, caller, name, stage, paused=False)


@router.get("/estimates", responses=errors(503))
def list_calibrations(caller: Administrator, services: ServicesDep) -> list[CalibrationView]:
    """List how many of the estimates of each stage have held: 80 % should.

    The rescuer asks for the estimates of some waiting stage runs, keeps them, and learns of each how long it waited.
    Counted are those of a stage's newest 1,000 whose wait has ended, of all tenants: so this needs the scope `admin`,
    as pauses do.
    """
    return list(services.jobs.calibrations())
