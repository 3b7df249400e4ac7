"""Routes of the status: how loaded each stage is, the workers and the newest jobs; and of a browser's session."""

from datetime import UTC, datetime

from fastapi import APIRouter, Request, Response

from omni_jobs.api.needs import Reader, Viewer
from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.api.session_cookie import drop_session, keep_session, session_of
from omni_jobs.api.stage_loads import is_shown_picture, stage_loads, without_long_progress
from omni_jobs.http.error_answers import errors
from omni_jobs.http.path_prefix import below
from omni_jobs.http.process import short_switch_interval
from omni_jobs.http.request_parameters import client_network
from omni_jobs.views import Counts, Page, RecentJob, Status

router = APIRouter(tags=["status"])


@router.get("/v1/status", response_model=Status, responses=errors(503))
async def status(caller: Viewer, services: ServicesDep) -> Response:
    """Get the status: jobs by state, stages with their queues, workers and the newest jobs.

    The jobs are those of the caller's tenant. A key with the scope `admin` sees the counts of all tenants, and the
    workers, which are left out for others, because their load tells of other tenants' jobs.
    """

    counts = await services.counts(None if caller.operates else caller.sees).get()
    newest = await services.newest_jobs(caller.sees).get()

    def read() -> Response:
        with short_switch_interval():
            body = _status(services, caller.operates, counts, newest).model_dump_json()
            return Response(body, media_type="application/json")

    return await services.list_threads.run(caller.sees, read)


def _status(services: Services, operates: bool, counts: Counts, newest: Page) -> Status:
    workers = list(services.jobs.workers())
    jobs = services.jobs
    paused, down = jobs.paused_stages(), jobs.down_engines()
    stages = stage_loads(services.pipelines, counts, workers, paused, down, jobs.known_versions())
    recent = [
        RecentJob(
            **job.model_dump(exclude={"artifacts", "stages"}),
            stages=[without_long_progress(stage) for stage in job.stages],
            artifacts=[artifact.url for artifact in job.artifacts],
            pictures=[artifact.url for artifact in job.artifacts if is_shown_picture(artifact)],
        )
        for each in newest.jobs
        for job in [below(services.settings.root_path, each)]
    ]
    shown = workers if operates else []
    return Status(
        at=datetime.now(UTC),
        jobs=counts.jobs,
        stages=stages,
        workers=shown,
        recent=recent,
        has_session=services.callers.auth == "keys",
    )


@router.post("/v1/session", status_code=204, response_class=Response, responses=errors(401, 403, 409, 503))
async def begin_session(caller: Reader, request: Request, services: ServicesDep) -> Response:
    """Begin a session of the dashboard with the key of this request, and keep its id in a cookie.

    The session opens the dashboard, and there it may do what the key may. It ends after 12 hours, with its key, and
    when it is deleted. 409 where callers have no keys.
    """
    session_id = await services.callers.begin_session(request.headers)
    answer = Response(status_code=204)
    keep_session(answer, session_id, request, services.transport)
    return answer


@router.delete("/v1/session", status_code=204, response_class=Response, responses=errors(503))
async def end_session(request: Request, services: ServicesDep) -> Response:
    """End the session of this request's cookie, and delete the cookie from the browser. The key stays valid."""
    session_id = session_of(request, services.transport)
    if session_id is not None:
        await services.callers.end_session(session_id, client_network(request))
    answer = Response(status_code=204)
    drop_session(answer, request, services.transport)
    return answer
