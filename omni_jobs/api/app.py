"""``create_app``: the HTTP API, a FastAPI application. Importing it loads neither torch nor vLLM."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from anyio.to_thread import run_sync
from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi

from omni_jobs.api import error_answers as errors
from omni_jobs.api.browsers import KnownPages
from omni_jobs.api.held_bodies import BoundedBodies
from omni_jobs.api.query_parameters import check_query
from omni_jobs.api.routes import (
    artifacts,
    bulk,
    dashboard,
    health,
    jobs,
    pipelines,
)
from omni_jobs.api.services import Services
from omni_jobs.requests import JobRequest
from omni_jobs.settings import Settings

__all__ = ["create_app"]

_HEALTH = ("/healthz", "/readyz")


def create_app(settings: Settings, services: Services | None = None) -> FastAPI:
    """The application; it opens its services when it starts, or takes these. Any number of replicas may run."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.services = services or await run_sync(Services.open, settings)
        try:
            yield
        finally:
            await app.state.services.close()

    app = _Api(
        title="omni-jobs",
        summary="Durable generation jobs on multi-stage omni-modal models",
        version=version("omni-jobs"),
        lifespan=lifespan,
        redirect_slashes=False,  # a redirect would lead to whatever host the request names
        docs_url=None,  # both would load scripts from elsewhere
        redoc_url=None,
    )
    errors.install(app)
    app.add_middleware(BoundedBodies, settings=settings)
    app.add_middleware(KnownPages, settings=settings)
    for noun in (jobs, bulk, artifacts, pipelines, dashboard):
        app.include_router(noun.router, dependencies=[Depends(check_query)])
    app.include_router(health.router)
    return app


class _Api(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """The routes' document, with the body of a submit, which no route parameter describes."""
        if self.openapi_schema is None:
            document = get_openapi(title=self.title, version=self.version, summary=self.summary, routes=self.routes)
            request = JobRequest.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas = document["components"]["schemas"]
            schemas |= {**request.pop("$defs"), "JobRequest": request}
            _declare_errors(document["paths"], schemas)
            self.openapi_schema = document
        return self.openapi_schema


def _declare_errors(paths: dict[str, Any], schemas: dict[str, Any]) -> None:
    """What every route may answer, in our shape; FastAPI declares a shape of its own that ours never has."""
    for path, operations in paths.items():
        for method, operation in operations.items():
            everywhere = [421] if path in _HEALTH else [421, 422]
            if method not in ("get", "head"):
                everywhere.append(403)
            if "requestBody" in operation:
                everywhere.append(408)
            responses = operation["responses"]
            if "HTTPValidationError" in str(responses.get("422")):
                del responses["422"]
            for status in everywhere:
                responses.setdefault(str(status), _error_response(status))
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)


def _error_response(status: int) -> dict[str, Any]:
    return {
        "description": HTTPStatus(status).phrase,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}},
    }
