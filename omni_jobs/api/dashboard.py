"""Routes of the status page: the page, the JSON that it shows, and the session of a browser that shows it."""

import base64
import hashlib
import re
from collections import defaultdict
from datetime import UTC, datetime
from functools import lru_cache
from importlib.resources import files

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from omni_jobs.api.needs import Reader, Viewer
from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.api.session_cookie import drop_session, keep_session, session_of
from omni_jobs.http.browsers import SHOWN_TYPES
from omni_jobs.http.error_answers import errors
from omni_jobs.http.path_prefix import below
from omni_jobs.http.process import short_switch_interval
from omni_jobs.http.request_parameters import client_network
from omni_jobs.states import JobState, StageRunState
from omni_jobs.views import ArtifactView, Counts, ErrorView, Page, StageRunView, WaitingView, WarningView, WorkerView

router = APIRouter(tags=["status"])

_LARGEST_PICTURE_BYTES = 16 << 20  # the page has those of many jobs
_LARGEST_PREVIEW = 64 << 10  # characters of its data URL, because each refresh of the page brings it again


class StageLoad(BaseModel):
    """A stage on the status page: how many stage runs it has in each state, and how many workers and slots."""

    pipeline: str
    stage: str
    pending: int  # stage runs that wait for an earlier stage
    queued: int
    running: int
    workers: int
    slots: int  # the stage runs that those workers can hold together
    paused: bool  # its workers claim nothing


class RecentJob(BaseModel):
    """A job in the list of the newest jobs. GET /v1/jobs/{id} returns the whole job."""

    id: str
    pipeline: str
    status: JobState
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    stages: list[StageRunView]
    waiting: WaitingView | None
    warnings: list[WarningView]
    artifacts: list[str]  # their URLs
    pictures: list[str]  # the URLs of those artifacts that the page shows
    error: ErrorView | None


class Status(BaseModel):
    """What the status page shows: jobs by state, stages, workers and the newest jobs, some of it moments old."""

    at: datetime
    jobs: dict[JobState, int]  # those that have not ended
    stages: list[StageLoad]
    workers: list[WorkerView]
    recent: list[RecentJob]
    has_session: bool  # whether the callers have keys, which a browser keeps in a session


@router.get("/v1/status", response_model=Status, responses=errors(503))
async def status(caller: Viewer, services: ServicesDep) -> Response:
    """Get what the status page shows: jobs by state, stages with their queues, workers and the newest jobs.

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
    paused = services.jobs.paused_stages()
    runs: dict[tuple[str, str], dict[StageRunState, int]] = defaultdict(dict)
    for count in counts.stage_runs:
        runs[count.pipeline, count.stage][count.state] = count.count
    served = [(pipeline.name, stage) for pipeline in services.pipelines.values() for stage in pipeline.stages]
    stages = [
        StageLoad(
            pipeline=pipeline,
            stage=stage,
            pending=runs[pipeline, stage].get(StageRunState.PENDING, 0),
            queued=runs[pipeline, stage].get(StageRunState.QUEUED, 0),
            running=runs[pipeline, stage].get(StageRunState.RUNNING, 0),
            workers=sum((worker.pipeline, worker.stage) == (pipeline, stage) for worker in workers),
            paused=(pipeline, stage) in paused,
            slots=sum(worker.slots for worker in workers if (worker.pipeline, worker.stage) == (pipeline, stage)),
        )
        for pipeline, stage in dict.fromkeys([*served, *runs])  # with the queues of pipelines that are gone
    ]
    recent = [
        RecentJob(
            **job.model_dump(exclude={"artifacts", "stages"}),
            stages=[_brief(stage) for stage in job.stages],
            artifacts=[artifact.url for artifact in job.artifacts],
            pictures=[artifact.url for artifact in job.artifacts if _is_picture(artifact)],
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


def _brief(stage: StageRunView) -> StageRunView:
    """Return a stage run without what may be long in its progress: its text, and a preview that is large."""
    if stage.progress is None:
        return stage
    picture = stage.progress.picture
    shown = picture if picture is not None and len(picture) <= _LARGEST_PREVIEW else None
    return stage.model_copy(update={"progress": stage.progress.model_copy(update={"text": None, "picture": shown})})


def _is_picture(artifact: ArtifactView) -> bool:
    """Return whether the page shows an artifact: as all pictures in which nothing runs, unless it is very large."""
    is_image = artifact.media_type.startswith("image/") and artifact.media_type in SHOWN_TYPES
    return is_image and artifact.bytes <= _LARGEST_PICTURE_BYTES


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


@router.get("/", include_in_schema=False)
def page() -> Response:
    """Return the status page as HTML."""
    html, policy = _page()
    headers = {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}
    return Response(html, headers=headers, media_type="text/html")


@lru_cache(maxsize=1)
def _page() -> tuple[bytes, str]:
    """Return the page, and a Content-Security-Policy.

    It allows the page's own script and style, this server's answers and pictures, and previews, which stand in answers.
    """
    html = files("omni_jobs.api").joinpath("dashboard.html").read_text(encoding="utf-8")
    script, style = (_hash_of(tag, html) for tag in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; "
        "img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html.encode(), policy


def _hash_of(tag: str, html: str) -> str:
    """Return the digest of the page's one element of this tag, as a policy writes it."""
    [content] = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
