"""Routes of stages: pause and resume them, and how good the estimates of their waits have been."""

from collections.abc import Callable
from functools import partial

from fastapi import APIRouter

from omni_jobs.api.needs import Administrator
from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.database.clock import as_datetime
from omni_jobs.http.error_answers import errors
from omni_jobs.identity import StageId
from omni_jobs.views import CalibrationView, StagePauseView

router = APIRouter(prefix="/v1", tags=["stages"])


@router.post("/pipelines/{name}/stages/{stage}/pause", responses=errors(403, 404, 503))
def pause_stage(caller: Administrator, name: str, stage: str, services: ServicesDep) -> StagePauseView:
    """Pause a stage: its workers go on with what they run, and claim nothing more from their next heartbeat on.

    Jobs are taken as before, and wait. Deadlines and `queue_limit_s` go on. Pausing it again changes nothing.
    """
    return _changed(services, name, stage, partial(services.jobs.pause, by=caller.actor))


@router.post("/pipelines/{name}/stages/{stage}/resume", responses=errors(403, 404, 503))
def resume_stage(caller: Administrator, name: str, stage: str, services: ServicesDep) -> StagePauseView:
    """Resume a stage: its workers claim again from their next heartbeat on. Resuming it again changes nothing."""
    answer = _changed(services, name, stage, partial(services.jobs.resume, by=caller.actor))
    services.relay.ring([services.pipelines.named(name).queue(stage)])
    return answer


@router.get("/estimates", responses=errors(503))
def list_calibrations(caller: Administrator, services: ServicesDep) -> list[CalibrationView]:
    """List how many of the estimates of each stage have held: 80 % should.

    The rescuer asks for the estimates of some waiting stage runs, keeps them, and learns of each how long it waited.
    Counted are those of a stage's newest 1,000 whose wait has ended, of all tenants: so this needs the scope `admin`,
    as pauses do.
    """
    return list(services.jobs.calibrations())


def _changed(services: Services, name: str, stage: str, change: Callable[[StageId], None]) -> StagePauseView:
    """Change a stage's pause, and return it. Raises NotFound for a pipeline or a stage that is not served."""
    change(services.pipelines.named(name, field="name").stage_id(stage))
    paused_at = services.jobs.paused_stages().get((name, stage))
    return StagePauseView(pipeline=name, stage=stage, paused_at=None if paused_at is None else as_datetime(paused_at))
