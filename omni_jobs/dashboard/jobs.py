"""The list of jobs: filters in the address bar, pages by key, and what is done to many of them after a preview."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, cast, get_args

from fastapi import APIRouter, Request, Response
from starlette.datastructures import QueryParams

from omni_jobs.api.job_filters import time_of_query
from omni_jobs.api.many_jobs import act_on_chosen, act_on_matching, matching_of
from omni_jobs.dashboard.actions import ACTION_ID, PARTICIPLES
from omni_jobs.dashboard.fragments import POLLED_S, Fragment
from omni_jobs.dashboard.job_query import JobQuery
from omni_jobs.dashboard.page_route import PageRoute
from omni_jobs.dashboard.visit import Acts, Looks, Visit
from omni_jobs.errors import InvalidRequest, NotFound
from omni_jobs.http.form_reader import Form, read_form
from omni_jobs.http.process import short_switch_interval
from omni_jobs.http.request_parameters import JOB_ID
from omni_jobs.jobs import ActionVerb, JobFilter, NewAction, new_action_id
from omni_jobs.states import JobState
from omni_jobs.views import JobView

# JobQuery checks the query: its fields are those of the API's list.
router = APIRouter(route_class=PageRoute, include_in_schema=False)

_PAGE: Final = 50
_ACTIONS: Final = 3  # that go on, above the list
_SHOWN: Final = 10  # of the jobs that an action is about
_MOST_CHOSEN: Final = 200
_MOST_FORM: Final = 64 << 10


@router.get("/jobs")
async def list_jobs(visit: Looks, request: Request) -> Response:
    """Show a page of jobs."""
    query = JobQuery.of(request.query_params)
    await _check_pipeline(visit, query)
    return await visit.page(
        "jobs",
        "Jobs",
        content=await _content(visit, query),
        query=query,
        states=list(JobState),
        pipelines=sorted(visit.services.pipelines),
    )


@router.get("/fragments/jobs")
async def list_content(visit: Looks, request: Request) -> Response:
    """Return what of a page of jobs changes."""
    return visit.answer(await _content(visit, JobQuery.of(request.query_params)))


async def _check_pipeline(visit: Visit, query: JobQuery) -> None:
    """Raise NotFound if the query names a pipeline that is not served, and of which the caller sees no job."""
    name = query.action.pipeline
    if name is None or name in visit.services.pipelines:
        return
    wanted, threads = JobFilter(pipeline=name, tenant=visit.caller.sees), visit.services.list_threads
    found = await threads.run(visit.caller.sees, lambda: visit.services.jobs.list(wanted, 1, brief=True))
    if not found.jobs:
        visit.services.pipelines.named(name, field="pipeline")


async def _content(visit: Visit, query: JobQuery) -> Fragment:
    wanted = query.filter(visit.caller)

    def read() -> Mapping[str, Any]:
        with short_switch_interval():
            page = visit.services.jobs.list(wanted, _PAGE, query.cursor, brief=True)
            under_way = visit.services.jobs.actions(visit.caller.sees, at_most=_ACTIONS, only_unended=True)
        return {
            "now": datetime.now(UTC),
            "jobs": page.jobs,
            "actions": under_way,
            "query": query,
            "older": None if page.next_cursor is None else query.text(page.next_cursor),
            "shows_tenants": visit.caller.sees_all,
        }

    return await visit.fragment("jobs", read, query.text(query.cursor), kept_s=POLLED_S)


@router.post("/jobs/actions")
async def preview_action(visit: Acts, request: Request) -> Response:
    """Show how many jobs an action is about, and which, before it is done."""
    form = await _form(request)
    verb, query, chosen, before = _verb(form), _query(form), _chosen(form), time.time()
    await _check_pipeline(visit, query)
    if form.only_text("of") == "matching":
        chosen = []
        wanted = _wanted(visit, verb, query, before)
        counting = query.to_act(dry_run=True, before=before)
        counted = await act_on_matching(visit.services, visit.caller, verb, counting)
        page = await visit.services.list_threads.run(
            visit.caller.sees, lambda: visit.services.jobs.list(wanted, _SHOWN, brief=True)
        )
        count, goes_on, shown = counted.matched, counted.next_cursor is not None, page.jobs
    elif chosen:
        count, goes_on = len(chosen), False
        shown = await visit.services.list_threads.run(visit.caller.sees, lambda: _some(visit, chosen))
    else:
        raise InvalidRequest("choose jobs first, or all that match the filter", field="job")
    return await visit.page(
        "action_preview",
        f"{verb.capitalize()} jobs",
        verb=verb,
        query=query,
        chosen=chosen,
        before=repr(before),
        action_id=new_action_id(),
        count=count,
        goes_on=goes_on,
        shown=shown,
        now=datetime.now(UTC),
    )


@router.post("/jobs/actions/run")
async def run_action(visit: Acts, request: Request) -> Response:
    """Do an action to the jobs that were chosen, and say what became of them; or begin one on those that match.

    That goes on by itself, on any server, and has its page. It is about jobs that were there when it was previewed. A
    form that is sent twice begins one.
    """
    form = await _form(request)
    verb, query, chosen = _verb(form), _query(form), _chosen(form)
    if chosen:
        done = await act_on_chosen(visit.services, visit.caller, verb, chosen)
        visit.forget()
        title = f"{done.changed:,} {PARTICIPLES[verb]}"
        return await visit.page("action_done", title, participle=PARTICIPLES[verb], query=query, done=done)
    action_id = form.only_text("action") or new_action_id()
    if not ACTION_ID.fullmatch(action_id):
        raise InvalidRequest("is no id of an action", field="action")
    wanted = _wanted(visit, verb, query, _moment(form))
    new = NewAction(action_id, verb, wanted, query.text(), visit.caller.actor, visit.caller.sees)
    await visit.services.list_threads.run(visit.caller.sees, lambda: visit.services.jobs.begin_action(new))
    visit.services.actions.wake()
    return visit.moved(f"/actions/{action_id}")


def _wanted(visit: Visit, verb: ActionVerb, query: JobQuery, before: float) -> JobFilter:
    """Return the filter of an action, which leaves jobs alone that came after this moment.

    Raises InvalidRequest and MissingScope, also for a query without a filter.
    """
    wanted = matching_of(visit.caller, verb, query.to_act())
    earliest = before if wanted.created_before is None else min(before, wanted.created_before)
    return replace(wanted, created_before=earliest)


def _some(visit: Visit, chosen: Sequence[str]) -> list[JobView]:
    """Return the first of the chosen jobs, without those that are gone."""
    found = []
    for job_id in chosen[:_SHOWN]:
        with suppress(NotFound):
            found.append(visit.services.jobs.get(job_id, visit.caller.sees))
    return found


async def _form(request: Request) -> Form:
    most = _MOST_CHOSEN + 8
    return await read_form(request, _MOST_FORM, max_files=0, max_texts=most, max_text_bytes=_MOST_FORM)


def _verb(form: Form) -> ActionVerb:
    verb = form.only_text("verb")
    if verb not in get_args(ActionVerb):
        raise InvalidRequest(f"must be one of {', '.join(get_args(ActionVerb))}", field="verb")
    return cast(ActionVerb, verb)


def _query(form: Form) -> JobQuery:
    """Return the query of the list from which a form comes, without its page."""
    query = JobQuery.of(QueryParams(form.only_text("query") or ""))
    return JobQuery.of(QueryParams(query.text()))


def _chosen(form: Form) -> list[str]:
    """Return the ids of the jobs that were chosen. Raises InvalidRequest for what is no id, and for too many."""
    chosen = list(dict.fromkeys(form.texts.get("job", [])))
    if len(chosen) > _MOST_CHOSEN:
        raise InvalidRequest(f"has more than {_MOST_CHOSEN} jobs: choose by a filter", field="job")
    if not all(map(JOB_ID.fullmatch, chosen)):
        raise InvalidRequest("is no id of a job", field="job")
    return chosen


def _moment(form: Form) -> float:
    """Return when an action was previewed, in seconds since 1970; now, if no form says. Raises InvalidRequest."""
    text = form.only_text("before")
    if not text:
        return time.time()
    try:
        moment = time_of_query(text)
    except ValueError:
        raise InvalidRequest("must be a time in seconds since 1970", field="before") from None
    now = time.time()
    return now if moment is None else min(moment, now)
