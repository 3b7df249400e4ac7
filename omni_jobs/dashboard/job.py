"""The page of a job: its timeline, its text as it grows, what it has made, its errors and events, and what to do."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request, Response

from omni_jobs.api.asked_job import asked_job
from omni_jobs.dashboard.fragments import Fragment
from omni_jobs.dashboard.page_route import PageRoute
from omni_jobs.dashboard.shown_job import shown_job, shown_json
from omni_jobs.dashboard.snippets import snippets_of
from omni_jobs.dashboard.timeline import timeline_of, words_of
from omni_jobs.dashboard.visit import Acts, Looks, Visit
from omni_jobs.errors import InvalidRequest
from omni_jobs.http.form_reader import read_form
from omni_jobs.http.process import short_switch_interval
from omni_jobs.http.request_parameters import JobId
from omni_jobs.requests import parse_fork
from omni_jobs.tenants.caller import Scope

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_MOST_FORM: Final = 256 << 10
_MOST_EVENTS: Final = 100
_LONGEST_SNIPPET: Final = 400_000  # characters; a longer one is not shown, because a part of it sends nothing


@router.get("/jobs/{job_id}")
async def show_job(visit: Looks, job_id: JobId) -> Response:
    """Show a job."""
    content = await _content(visit, job_id, with_text=True)
    return await visit.page("job", job_id, content=content, job_id=job_id)


@router.get("/fragments/jobs/{job_id}")
async def job_content(visit: Looks, job_id: JobId, ended: bool = False) -> Response:
    """Return what of a job's page changes, without the text of stages that run: the page listens to its events.

    ``ended``: the page has heard of the job's end, and wants nothing of before.
    """
    return visit.answer(await _content(visit, job_id, with_text=False, ended=ended))


async def _content(visit: Visit, job_id: str, *, with_text: bool, ended: bool = False) -> Fragment:
    def read() -> Mapping[str, Any]:
        with short_switch_interval():
            job = asked_job(visit.services, visit.caller, job_id)
            events = visit.services.jobs.events(job_id, visit.caller.sees)
            may_retry = visit.caller.may(Scope.SUBMIT) and job.status.is_final
            retries = visit.services.jobs.retries(job_id) if may_retry else {}
        now = datetime.now(UTC)
        return {
            **shown_job(job, with_text=with_text),
            "now": now,
            "retry_from": [stage or "" for stage, trouble in retries.items() if trouble is None],
            "no_retry": next((trouble for stage, trouble in retries.items() if stage and trouble), None),
            "events": events[-_MOST_EVENTS:],
            "timeline": timeline_of(job, now),
            "words_of": words_of,
            "errors": [(stage.name, error) for stage in job.stages for error in stage.errors],
        }

    return await visit.fragment("job", read, job_id, with_text, ended)


@router.get("/fragments/jobs/{job_id}/request")
async def show_request(visit: Looks, job_id: JobId) -> Response:
    """Return the request of a job, and what sends it again."""

    def read() -> Mapping[str, Any]:
        with short_switch_interval():
            job = asked_job(visit.services, visit.caller, job_id)
            request = visit.services.jobs.admitted_request(job_id, visit.caller.sees)
        url = visit.services.settings.public_url or str(visit.request.base_url).rstrip("/")
        has_keys = visit.services.callers.auth == "keys"
        snippets = snippets_of(request, job.seed, url.rstrip("/"), has_keys=has_keys)
        return {
            "request": shown_json(request),
            "snippets": [each for each in snippets if len(each.text) <= _LONGEST_SNIPPET],
        }

    return visit.answer(await visit.fragment("request", read, job_id, str(visit.request.base_url)))


@router.post("/jobs/{job_id}/cancel")
async def cancel_job(visit: Acts, job_id: JobId) -> Response:
    """Cancel a job. One that has ended keeps its state, which its page shows."""
    cancel = partial(visit.services.jobs.cancel, job_id, visit.caller.sees, by=visit.caller.actor)
    await run_sync(cancel)
    return visit.moved(f"/jobs/{job_id}")


@router.post("/jobs/{job_id}/advance")
async def advance_job(visit: Acts, job_id: JobId) -> Response:
    """Bring a job that nobody has started to the front of its tenant's line."""
    await run_sync(partial(visit.services.jobs.advance, job_id, visit.caller.sees, by=visit.caller.actor))
    return visit.moved(f"/jobs/{job_id}")


@router.post("/jobs/{job_id}/retry")
async def retry_job(visit: Acts, job_id: JobId, request: Request) -> Response:
    """Run a job again: what did not succeed, or from a stage on."""
    form = await read_form(request, _MOST_FORM, max_files=0)
    caller = visit.caller
    await visit.services.intake.retry(
        job_id,
        form.only_text("from_stage") or None,
        caller.sees,
        caller.limits,
        may_be_high=caller.may(Scope.PRIORITY),
        by=caller.actor,
    )
    return visit.moved(f"/jobs/{job_id}")


@router.post("/jobs/{job_id}/fork")
async def fork_job(visit: Acts, job_id: JobId, request: Request) -> Response:
    """Submit a job that takes over the earlier stages of this one, with changes, and go to its page."""
    form = await read_form(request, _MOST_FORM, max_files=0)
    try:
        changes = json.loads(form.only_text("changes") or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"is no JSON: {error}", field="changes") from None
    if not isinstance(changes, dict):
        raise InvalidRequest("must be an object, such as {}", field="changes")
    body = json.dumps({**changes, "from_stage": form.only_text("from_stage") or ""}).encode()
    parse = partial(parse_fork, body, visit.services.settings, caller=visit.caller)
    result = await visit.services.intake.fork(job_id, await visit.services.lanes.run_parsing([body], parse))
    return visit.moved(f"/jobs/{result.job_id}")
