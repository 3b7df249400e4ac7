"""Routes of health: ``/healthz`` says that the process answers, ``/readyz`` whether it can take and run jobs."""

from typing import Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from omni_jobs.api.readiness import Readiness, Standing
from omni_jobs.api.services import ServicesDep
from omni_jobs.http.error_answers import headers_of
from omni_jobs.http.request_parameters import client_network

router = APIRouter(tags=["health"])


class Health(BaseModel):
    status: Literal["ok"] = "ok"


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
    readiness, reason = await services.readiness.look()
    if reason is not None:
        response.status_code = 503
        response.headers.update(headers_of(reason))
    if await services.callers.knows(request.headers, client_network(request)):
        return readiness
    return Standing(status=readiness.status)
