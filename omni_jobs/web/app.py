"""``create_app``: the HTTP API and the dashboard, one application. Importing it loads neither torch nor vLLM."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import version
from typing import Any, Final

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from omni_jobs.api import (
    artifacts,
    bulk,
    chat_completions,
    health,
    images,
    job_actions,
    jobs,
    metrics,
    models,
    pipeline_versions,
    pipelines,
    responses,
    scaling,
    speech,
    stages,
    status,
    transcriptions,
    usage,
    videos,
    workers,
)
from omni_jobs.api.needs import needs_key
from omni_jobs.api.readiness import beat_while_ready
from omni_jobs.api.services import Services
from omni_jobs.dashboard import routes as dashboard_routes
from omni_jobs.dashboard.fragments import Fragments
from omni_jobs.dashboard.page_route import error_page
from omni_jobs.errors import NotFound
from omni_jobs.http.broken_answers import BrokenAnswers
from omni_jobs.http.browsers import KnownPages
from omni_jobs.http.counted_answers import CountedAnswers
from omni_jobs.http.error_answers import answer_of_framework, errors, install_error_answers
from omni_jobs.http.held_bodies import BoundedBodies
from omni_jobs.http.middleware import CancelledRequests, HeadRequests
from omni_jobs.http.path_prefix import PathPrefix
from omni_jobs.http.request_ids import RequestIds
from omni_jobs.http.request_parameters import check_query
from omni_jobs.metrics.api_metrics import ApiMetrics
from omni_jobs.metrics.beat_file import BeatFile
from omni_jobs.requests import JobRequest
from omni_jobs.settings import Settings
from omni_jobs.stack.plugs import Plugs
from omni_jobs.web.exact_routes import ExactRoutes


def create_app(settings: Settings, services: Services | None = None, plugs: Plugs | None = None) -> FastAPI:
    """Return the HTTP API with the dashboard as a FastAPI application. Any number of replicas may run.

    It opens its services when it starts, unless ``services`` are given, and closes them in either case when it stops.
    ``plugs``: of the embedded stack whose API this is, closed with them; None: of none, and no page pulls them.
    """
    measured = ApiMetrics() if services is None else services.metrics

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.services = services or await run_sync(Services, settings, measured)
        app.state.fragments = Fragments()
        app.state.services.actions.start()
        beats = asyncio.create_task(beat_while_ready(BeatFile(settings.beat_file), app.state.services.readiness))
        try:
            yield
        finally:
            beats.cancel()
            await app.state.services.close()
            if plugs is not None:
                plugs.close()

    app = _Api(
        settings,
        servers=[{"url": settings.root_path}] if settings.root_path else None,
        root_path_in_servers=False,
        title="omni-jobs",
        summary="Durable generation jobs on multi-stage omni-modal models",
        version=version("omni-jobs"),
        lifespan=lifespan,
        redirect_slashes=False,  # a redirect would lead to whatever host the request names
        docs_url=None,  # both pages would load scripts from other servers
        redoc_url=None,
    )
    app.state.metrics = measured
    app.state.plugs = plugs
    install_error_answers(app)
    app.add_exception_handler(404, _answer_unknown_path)
    app.add_middleware(CancelledRequests)
    app.add_middleware(BoundedBodies, settings=settings)
    app.add_middleware(KnownPages, settings=settings)
    app.add_middleware(HeadRequests)
    if settings.root_path:
        app.add_middleware(PathPrefix, prefix=settings.root_path)
    app.router.routes += _routes()
    return app


def _answer_unknown_path(request: Request, error: Exception) -> Response:
    """Answer where no route has the path: with a page if a person reads it, who has followed a wrong link."""
    if not isinstance(error, HTTPException):
        raise error
    reads_pages = request.method == "GET" and "text/html" in request.headers.get("accept", "")
    if reads_pages and not request.scope["path"].startswith(f"{request.scope.get('root_path', '')}/v1/"):
        return error_page(request, NotFound("there is no such page"))
    return answer_of_framework(request, error)


_OF_ANY_REQUEST: Final = errors(400, 408, 421, 431, 503)
"""What the server may answer in place of any route: to a head that is wrong, late or too large, or while it is full."""


@cache  # they take longer than all else of an application
def _routes() -> list[BaseRoute]:
    router = APIRouter()
    openai = (models, chat_completions, responses, speech, transcriptions, images, videos)
    for noun in (
        jobs,
        job_actions,
        bulk,
        artifacts,
        pipelines,
        pipeline_versions,
        stages,
        workers,
        scaling,
        usage,
        metrics,
        *openai,
        status,
    ):
        documented = {**_OF_ANY_REQUEST, **errors(401, 403, 422, 429)}
        router.include_router(noun.router, dependencies=[Depends(check_query)], responses=documented)
    router.include_router(health.router, responses=_OF_ANY_REQUEST)
    router.include_router(dashboard_routes.router)
    return [ExactRoutes(router.routes), *router.routes]


class _Api(FastAPI):
    def __init__(self, settings: Settings, **given: Any) -> None:
        super().__init__(**given)
        self._settings = settings

    def build_middleware_stack(self) -> ASGIApp:
        """Return the application with all its middleware, through which requests pass; the lifespan does not.

        Request ids are outermost, so that a bug's answer has one too.
        """
        answer = RequestIds(CountedAnswers(BrokenAnswers(super().build_middleware_stack()), self._count))

        async def call(scope: Scope, receive: Receive, send: Send) -> None:
            await (answer if scope["type"] == "http" else self.router)(scope, receive, send)

        return call

    def _count(self, status: int, code: str) -> None:
        self.state.metrics.answers.labels(status, code).inc()

    def openapi(self) -> dict[str, Any]:
        """Return the document of the routes, with the body of a submit, which no route declares as a parameter.

        Where callers have keys, it says which routes take one.
        """
        if self.openapi_schema is None:
            request = JobRequest.model_json_schema(ref_template="#/components/schemas/{model}")
            super().openapi()["components"]["schemas"] |= {**request.pop("$defs"), "JobRequest": request}
            if self._settings.resolved_auth == "keys":
                self._document_keys(super().openapi())
        return super().openapi()

    def _document_keys(self, document: dict[str, Any]) -> None:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        for route in self.routes:
            if isinstance(route, APIRoute) and needs_key(route):
                for method in route.methods:
                    document["paths"][route.path_format][method.lower()]["security"] = [{"key": []}]
