"""Routes of health: ``/healthz`` says that the process answers, ``/readyz`` whether it can take and run jobs."""

import logging
from collections.abc import Callable
from typing import Literal

from anyio import CapacityLimiter, create_task_group, move_on_after
from anyio.to_thread import run_sync
from fastapi import APIRouter, Response
from pydantic import BaseModel

from omni_jobs.api.error_answers import headers_of
from omni_jobs.api.error_shape import shape_of
from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.errors import BrokerUnavailable, DatabaseUnavailable, OmniJobsError, StorageUnavailable
from omni_jobs.views import ErrorView, RequestErrorView

logger = logging.getLogger(__name__)

router = APIRouter(tags=["health"])

_LONGEST_CHECK_S = 5.0


class Check(BaseModel):
    ok: bool
    error: ErrorView | None = None


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """The state of the server, and the checks from which it follows.

    It is ``degraded``, and still takes and shows jobs, in two cases. Its broker is away: the jobs run once that is
    back. Or a pipeline file was broken after the start: this process goes on, but a new one would not start.
    """

    status: Literal["ready", "degraded", "unavailable"]
    error: RequestErrorView | None = None  # why it is unavailable
    database: Check
    broker: Check
    storage: Check
    pipelines: dict[str, Check]  # whether it admits jobs; a missing checkpoint concerns its own pipeline alone


@router.get("/healthz", response_model=Health)
async def healthz() -> Health:
    """Answer that the process is alive."""
    return Health()


@router.get("/readyz", response_model=Readiness, responses={503: {"model": Readiness, "description": "Not ready"}})
async def readyz(response: Response, services: ServicesDep) -> Readiness:
    """Check whether jobs can be taken and run, and say why not. 503 without database or object store."""
    failures: dict[str, OmniJobsError | None] = {}
    limiter = CapacityLimiter(3)

    async def run(name: str, check: Callable[[], object], late: OmniJobsError) -> None:
        failures[name] = late
        with move_on_after(_LONGEST_CHECK_S):
            failures[name] = await run_sync(_failure_of, check, abandon_on_cancel=True, limiter=limiter)

    async with create_task_group() as group:
        late = f"no answer within {_LONGEST_CHECK_S:g} s"
        group.start_soon(run, "database", services.db.check, DatabaseUnavailable(late))
        group.start_soon(run, "broker", services.broker.depths, BrokerUnavailable(late))
        group.start_soon(run, "storage", services.store.check, StorageUnavailable(late))
    refused = await run_sync(_refused, services)
    pipelines = await run_sync(_pipelines, services) | refused
    is_whole = failures["broker"] is None and not refused
    status: Literal["ready", "degraded", "unavailable"] = "ready" if is_whole else "degraded"
    reason = failures["database"] or failures["storage"]
    if reason is not None:
        status, response.status_code = "unavailable", 503
        response.headers.update(headers_of(reason))
    return Readiness(
        status=status,
        error=None if reason is None else RequestErrorView(**shape_of(reason)),
        database=_check_of(failures["database"]),
        broker=_check_of(failures["broker"]),
        storage=_check_of(failures["storage"]),
        pipelines=pipelines,
    )


def _failure_of(check: Callable[[], object]) -> OmniJobsError | None:
    try:
        check()
    except OmniJobsError as error:
        return error
    except Exception:
        logger.exception("readyz")  # never a 500, because this route exists to say why the server is not ready
        return OmniJobsError("an unforeseen error; the server's log has it")
    return None


def _check_of(failure: OmniJobsError | None) -> Check:
    return Check(ok=failure is None, error=None if failure is None else ErrorView(**failure.to_dict()))


def _refused(services: Services) -> dict[str, Check]:
    """Return the pipelines whose files, as they are now, a new process would refuse, with the errors."""
    errors = {name: services.pipelines.refusal(name) for name in services.pipelines}
    return {
        name: Check(ok=False, error=ErrorView(code=error.code, message=str(error), field=error.field))
        for name, error in errors.items()
        if error is not None
    }


def _pipelines(services: Services) -> dict[str, Check]:
    """Return for each pipeline whether jobs can be admitted to it."""
    errors = {name: services.unavailable_reason(pipeline) for name, pipeline in services.pipelines.items()}
    return {name: Check(ok=error is None, error=error) for name, error in errors.items()}
