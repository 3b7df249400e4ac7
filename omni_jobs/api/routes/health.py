"""Routes of health: ``/healthz`` is the process, ``/readyz`` is what it needs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

from anyio import CapacityLimiter, create_task_group, move_on_after
from anyio.to_thread import run_sync
from fastapi import APIRouter, Response
from pydantic import BaseModel

from omni_jobs.api.routes.pipelines import trouble
from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.errors import BrokerUnavailable, DatabaseUnavailable, OmniJobsError, StorageUnavailable
from omni_jobs.views import ErrorView

__all__ = ["router"]

logger = logging.getLogger(__name__)

router = APIRouter(tags=["health"])

_PATIENCE_S = 5.0


class Check(BaseModel):
    ok: bool
    error: ErrorView | None = None


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """``degraded``: without its broker the server still takes and shows jobs; they run once it is back. Where the
    stage config of a pipeline was broken since the start, this process goes on, and no new one would start."""

    status: Literal["ready", "degraded", "unavailable"]
    database: Check
    broker: Check
    storage: Check
    pipelines: dict[str, Check]  # whether jobs can be admitted; a missing checkpoint concerns its pipeline only


@router.get("/healthz", response_model=Health)
async def healthz() -> Health:
    """The process answers."""
    return Health()


@router.get("/readyz", response_model=Readiness, responses={503: {"model": Readiness, "description": "Not ready"}})
async def readyz(response: Response, services: ServicesDep) -> Readiness:
    """Whether jobs can be taken and run, and what is in the way. 503 without database or object store."""
    found: dict[str, Check] = {}
    limiter = CapacityLimiter(3)

    async def check(name: str, ask: Callable[[], object], late: OmniJobsError) -> None:
        found[name] = _failed(late)
        with move_on_after(_PATIENCE_S):
            found[name] = await run_sync(_checked, ask, abandon_on_cancel=True, limiter=limiter)

    async with create_task_group() as group:
        late = f"no answer within {_PATIENCE_S:g} s"
        group.start_soon(check, "database", services.db.check, DatabaseUnavailable(late))
        group.start_soon(check, "broker", services.broker.depths, BrokerUnavailable(late))
        group.start_soon(check, "storage", services.store.check, StorageUnavailable(late))
    refused = await run_sync(_refused, services)
    usable = found["database"].ok and found["storage"].ok
    whole = found["broker"].ok and not refused
    response.status_code = 200 if usable else 503
    return Readiness(
        status="unavailable" if not usable else "ready" if whole else "degraded",
        pipelines={**await run_sync(_pipelines, services), **refused},
        **found,
    )


def _checked(ask: Callable[[], object]) -> Check:
    try:
        ask()
    except OmniJobsError as error:
        return _failed(error)
    except Exception:
        logger.exception("readyz")  # what is in the way is what this route is for: never a 500
        return _failed(OmniJobsError("an unforeseen error; the server's log has it"))
    return Check(ok=True)


def _failed(error: OmniJobsError) -> Check:
    return Check(ok=False, error=ErrorView(**error.to_dict()))


def _refused(services: Services) -> dict[str, Check]:
    """The pipelines whose files, as they are now, would be refused."""
    found = {name: services.pipelines.refusal(name) for name in services.pipelines}
    return {
        name: Check(ok=False, error=ErrorView(code=error.code, message=str(error), field=error.field))
        for name, error in found.items()
        if error is not None
    }


def _pipelines(services: Services) -> dict[str, Check]:
    found = {name: trouble(services, pipeline) for name, pipeline in services.pipelines.items()}
    return {name: Check(ok=error is None, error=error) for name, error in found.items()}
