"""The page Try: a form for a pipeline, made of what it takes and declares, and the answer as it comes.

What it sends becomes a job as any client's does. Without JavaScript the form leads to the job's page.
"""

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

from fastapi import APIRouter, Query, Request, Response

from omni_jobs.api.asked_job import asked_job
from omni_jobs.dashboard.fragments import Fragment
from omni_jobs.dashboard.page_route import PageRoute, note_error
from omni_jobs.dashboard.shown_job import shown_job
from omni_jobs.dashboard.trial_form import TrialForm
from omni_jobs.dashboard.visit import Acts, Looks, Visit
from omni_jobs.errors import InvalidRequest, OmniJobsError
from omni_jobs.http.error_answers import shape_of
from omni_jobs.http.form_reader import Form, read_form
from omni_jobs.http.process import short_switch_interval
from omni_jobs.http.request_parameters import JOB_ID, JobId
from omni_jobs.requests import JobRequest, Submission, request_digest
from omni_jobs.views import ErrorView

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_MORE_FILES: Final = 8  # than a request may have, so that these are refused by their field
_MOST_FIELDS: Final = 1000
_LONGEST_ONCE: Final = 64

_NO_FORM: Final = Form({}, {})


class PipelineChoice(NamedTuple):
    """A pipeline that a person may try. ``trouble``: why none of its jobs is taken; None: they are."""

    name: str
    has_workers: bool
    trouble: ErrorView | None


@router.get("/try")
async def show_trial(
    visit: Looks,
    pipeline: Annotated[str | None, Query(max_length=100)] = None,
    job: Annotated[str | None, Query(pattern=f"^{JOB_ID.pattern}$")] = None,
) -> Response:
    """Show the form for a pipeline; with ``job`` beside it what became of that."""
    content = None if job is None else await _answer(visit, job, with_text=True)
    return await _page(visit, pipeline, answer=content, job_id=job)


@router.post("/try")
async def submit_trial(visit: Acts, request: Request) -> Response:
    """Submit the job that the form asks for, and go to its page; or show the form again with what is wrong.

    A script that asks for the answer alone gets it, and the name of its next try.
    """
    settings = visit.services.settings
    form = await read_form(
        request,
        settings.max_body_bytes,
        max_files=settings.max_media_parts + _MORE_FILES,
        max_texts=_MOST_FIELDS,
        max_text_bytes=settings.max_text_bytes,
    )
    pipelines = visit.services.pipelines
    pipeline = pipelines.named(form.only_text("model") or "")
    label = pipelines.label(pipeline)
    trial = await visit.services.list_threads.run(visit.caller.sees, partial(TrialForm.of, pipeline))
    try:
        job_id, problems = await _submitted(visit, trial, form)
    except OmniJobsError as error:
        note_error(request, error)
        problems = {trial.place_of(error.field, form): shape_of(error)["message"]}
        return await _page(visit, label, form=form, problems=problems, status=error.http_status)
    if job_id is None:
        return await _page(visit, label, form=form, problems=problems, status=InvalidRequest.http_status)
    if "hx-request" not in request.headers:
        return visit.moved(f"/jobs/{job_id}")
    visit.forget()
    content = await _answer(visit, job_id, with_text=True)
    return await visit.page("parts/answer", "", 201, answer=content, job_id=job_id, once=_once())


@router.get("/fragments/answers/{job_id}")
async def answer_content(visit: Looks, job_id: JobId, ended: bool = False) -> Response:
    """Return what of an answer changes, without the text of stages that run: the page listens to its events.

    ``ended``: the page has heard of the job's end, and wants nothing of before.
    """
    return visit.answer(await _answer(visit, job_id, with_text=False, ended=ended))


async def _answer(visit: Visit, job_id: str, *, with_text: bool, ended: bool = False) -> Fragment:
    def read() -> Mapping[str, Any]:
        with short_switch_interval():
            job = asked_job(visit.services, visit.caller, job_id)
        return {**shown_job(job, with_text=with_text), "now": datetime.now(UTC)}

    return await visit.fragment("answer", read, job_id, with_text, ended)


async def _submitted(visit: Visit, trial: TrialForm, form: Form) -> tuple[str | None, Mapping[str, str]]:
    """Submit the job of a form, and return its id; or None, and what is wrong, by the names of fields.

    A form that is sent twice makes one job. Raises what the API's submit raises.
    """
    services, caller = visit.services, visit.caller
    texts = form.text_bytes

    def parse() -> tuple[Submission | None, Mapping[str, str]]:
        sent, problems = trial.request(form)
        if problems:
            return None, problems
        digest = request_digest(sent)
        once = (form.only_text("once") or "")[:_LONGEST_ONCE]
        key = f"try-{once}-{digest[-16:]}" if once else None
        return Submission(JobRequest.parse(sent), digest, len(texts) + form.file_bytes, caller, key), {}

    submission, problems = await services.lanes.run_parsing([texts], parse, more_bytes=form.file_bytes)
    if submission is None:
        return None, problems
    return (await services.intake.submit(submission)).job_id, {}


async def _page(
    visit: Visit,
    name: str | None,
    *,
    form: Form = _NO_FORM,
    problems: Mapping[str, str] | None = None,
    status: int = 200,
    answer: Fragment | None = None,
    job_id: str | None = None,
) -> Response:
    """Answer with the page. ``name``: the pipeline; None: the one that is tried first."""
    run = partial(visit.services.list_threads.run, visit.caller.sees)
    choices = await run(lambda: _choices(visit))
    if name is None and choices:
        name = choices[0].name
    chosen = next((choice for choice in choices if choice.name == name), None)
    trial: TrialForm | None = None
    if name is not None and (chosen is None or chosen.trouble is None):
        pipeline = visit.services.pipelines.named(name, field="pipeline")
        trial = await run(partial(TrialForm.of, pipeline))
    return await visit.page(
        "trial",
        "Try",
        status,
        choices=choices,
        chosen=chosen,
        trial=trial,
        texts=form.texts,
        problems=problems or {},
        once=_once(),
        answer=answer,
        job_id=job_id,
    )


def _choices(visit: Visit) -> list[PipelineChoice]:
    """Return the pipelines: first those that have workers, last those of which no job is taken."""
    services = visit.services
    with short_switch_interval():
        at_work = {worker.pipeline for worker in services.jobs.workers()}
    choices = [
        PipelineChoice(name, pipeline.name in at_work, services.unavailable_reason(pipeline))
        for name, pipeline in services.pipelines.items()
    ]
    return sorted(choices, key=lambda each: (each.trouble is not None, not each.has_workers, each.name))


def _once() -> str:
    """Return a name for the next try."""
    return secrets.token_hex(8)
