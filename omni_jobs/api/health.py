"""Routes of health: ``/healthz`` says that the process answers, ``/readyz`` whether it can take and run jobs."""

from typing import Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from omni_jobs.api.services import ServicesDep
from omni_jobs.errors import OmniJobsError
from omni_jobs.http.client_network import client_network
from omni_jobs.http.error_answers import headers_of
from omni_jobs.http.error_shape import shape_of
from omni_jobs.views import ErrorView, RequestErrorView

router = APIRouter(tags=["health"])


class Check(BaseModel):
    ok: bool
    error: ErrorView | None = None


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class Standing(BaseModel):
    """The state of the server, which is all that a caller without a key learns where callers have keys.

    It is ``degraded``, and still takes and shows jobs, in two cases. Its broker is away: the jobs run once that is
    back. Or a pipeline file was broken after the start: this process goes on, but a new one would not start.
    """

    status: Literal["ready", "degraded", "unavailable"]


class Readiness(Standing):
    """The state of the server, and the checks from which it follows."""

    error: RequestErrorView | None = None  # why it is unavailable
    database: Check
    broker: Check
    storage: Check
    pipelines: dict[str, Check]  # whether it admits jobs; a missing checkpoint concerns its own pipeline alone


@router.get("/healthz", response_model=Health)
async def healthz() -> Health:
    """Answer that the process is alive."""
    return Health()


@router.get(
    "/readyz",
    response_model=Readiness | Standing,
    responses={503: {"model": Readiness | Standing, "description": "Not ready"}},
)
async def readyz(request: Request, response: Response, services: ServicesDep) -> Readiness | Standing:
    """Check whether jobs can be taken and run, and say why not. 503 without database or object store.

    All who ask within a second get the same answer. Where callers have keys, one without a key that counts learns the
    status alone.
    """
    troubles = await services.readiness.troubles()
    reason = troubles.reason
    if reason is not None:
        response.status_code = 503
        response.headers.update(headers_of(reason))
    if not await services.callers.knows(request.headers, client_network(request)):
        return Standing(status=troubles.status)
    return Readiness(
        status=troubles.status,
        error=None if reason is None else RequestErrorView(**shape_of(reason) | {"message": reason.whole_message}),
        database=_check_of(troubles.database),
        broker=_check_of(troubles.broker),
        storage=_check_of(troubles.storage),
        pipelines={name: Check(ok=error is None, error=error) for name, error in troubles.pipelines.items()},
    )


def _check_of(failure: OmniJobsError | None) -> Check:
    if failure is None:
        return Check(ok=True)
    return Check(ok=False, error=ErrorView(**failure.to_dict() | {"message": failure.whole_message}))
