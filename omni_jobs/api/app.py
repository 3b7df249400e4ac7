"""``create_app``: the HTTP API, a FastAPI application. Importing it loads neither torch nor vLLM."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from anyio.to_thread import run_sync
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from omni_jobs.api import artifacts, bulk, dashboard, errors, health, jobs, pipelines
from omni_jobs.api.held import BoundedBodies
from omni_jobs.api.services import Services
from omni_jobs.requests import JobRequest
from omni_jobs.settings import Settings

__all__ = ["create_app"]


def create_app(settings: Settings, services: Services | None = None) -> FastAPI:
    """The application; it opens its services when it starts, or takes these. Any number of replicas may run."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.services = services or await run_sync(Services.open, settings)
        try:
            yield
        finally:
            await run_sync(app.state.services.close)

    app = _Api(
        title="omni-jobs",
        summary="Durable generation jobs on multi-stage omni-modal models",
        version=version("omni-jobs"),
        lifespan=lifespan,
        docs_url=None,  # both would load scripts from elsewhere
        redoc_url=None,
    )
    errors.install(app)
    app.add_middleware(BoundedBodies, settings=settings)
    for noun in (jobs, bulk, artifacts, pipelines, dashboard, health):
        app.include_router(noun.router)
    return app


class _Api(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """The routes' document, with the body of a submit, which no route parameter describes."""
        if self.openapi_schema is None:
            document = get_openapi(title=self.title, version=self.version, summary=self.summary, routes=self.routes)
            request = JobRequest.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas = document["components"]["schemas"]
            schemas |= {**request.pop("$defs"), "JobRequest": request}
            _drop_framework_errors(document["paths"], schemas)
            self.openapi_schema = document
        return self.openapi_schema


def _drop_framework_errors(paths: dict[str, Any], schemas: dict[str, Any]) -> None:
    """FastAPI declares its own shape of 422 wherever a route has parameters; ours never has it."""
    for path in paths.values():
        for operation in path.values():
            if "HTTPValidationError" in str(operation["responses"].get("422")):
                del operation["responses"]["422"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
