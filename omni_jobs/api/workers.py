"""Routes of workers: drain and resume them."""

from typing import Annotated

from fastapi import APIRouter, Path

from omni_jobs.api.needs import Administrator
from omni_jobs.api.services import ServicesDep
from omni_jobs.api.worker_drains import set_drained
from omni_jobs.http.error_answers import errors
from omni_jobs.views import WorkerDrainView

router = APIRouter(prefix="/v1/workers", tags=["stages"])

WorkerName = Annotated[str, Path(description="its `id`, or its `slot`, which is its Celery node name")]


@router.post("/{worker}/drain", responses=errors(403, 404, 503))
def drain_worker(caller: Administrator, worker: WorkerName, services: ServicesDep) -> WorkerDrainView:
    """Drain a worker: it goes on with what it runs, and claims nothing more from its next heartbeat on.

    It keeps its engine loaded until it is resumed or ends. One that starts in its slot is not drained. Draining it
    again changes nothing.
    """
    return set_drained(services, caller, worker, drained=True)


@router.post("/{worker}/resume", responses=errors(403, 404, 503))
def resume_worker(caller: Administrator, worker: WorkerName, services: ServicesDep) -> WorkerDrainView:
    """Let a drained worker claim again from its next heartbeat on. Resuming it again changes nothing."""
    return set_drained(services, caller, worker, drained=False)
