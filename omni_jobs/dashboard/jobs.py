"""The list of jobs: filters in the address bar, pages by key, and what is done to many of them after a preview."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, cast, get_args

from fastapi import APIRouter, Request, Response
from starlette.datastructures import QueryParams

from omni_jobs.api.many_jobs import Verb, act_on_chosen, act_on_matching, matching_of
from omni_jobs.dashboard.fragments import Fragment
from omni_jobs.dashboard.job_query import JobQuery
from omni_jobs.dashboard.page_route import PageRoute
from omni_jobs.dashboard.visit import Acts, Looks, Visit
from omni_jobs.errors import InvalidRequest, NotFound
from omni_jobs.http.form_reader import Form, read_form
from omni_jobs.http.process import short_switch_interval
from omni_jobs.http.request_parameters import JOB_ID
from omni_jobs.states import JobState
from omni_jobs.views import JobView

# JobQuery checks the query: its fields are those of the API's list.
router = APIRouter(route_class=PageRoute, include_in_schema=False)

_PAGE: Final = 50
_SHOWN: Final = 10  # of the jobs that an action is about
_MOST_CHOSEN: Final = 200
_MOST_FORM: Final = 64 << 10
_DONE: Final[Mapping[Verb, str]] = {
    "cancel": "cancelled",
    "retry": "retried",
    "advance": "advanced",
    "delete": "deleted",
}


@router.get("/jobs")
async def list_jobs(visit: Looks, request: Request) -> Response:
    """Show a page of jobs."""
    query = JobQuery.of(request.query_params)
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


async def _content(visit: Visit, query: JobQuery) -> Fragment:
    wanted = query.filter(visit.caller)

    def read() -> Mapping[str, Any]:
        with short_switch_interval():
            page = visit.services.jobs.list(wanted, _PAGE, query.cursor, brief=True)
        return {
            "now": datetime.now(UTC),
            "jobs": page.jobs,
            "query": query,
            "older": None if page.next_cursor is None else query.text(page.next_cursor),
            "shows_tenants": visit.caller.sees_all,
        }

    return await visit.fragment("jobs", read, query.text(query.cursor))


@router.post("/jobs/actions")
async def preview_action(visit: Acts, request: Request) -> Response:
    """Show how many jobs an action is about, and which, before it is done."""
    form = await _form(request)
    verb, query, chosen = _verb(form), _query(form), _chosen(form)
    if form.only_text("of") == "matching":
        chosen = []
        counted = await act_on_matching(visit.services, visit.caller, verb, query.to_act(dry_run=True))
        wanted = matching_of(visit.caller, verb, query.to_act())
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
        "action",
        f"{verb.capitalize()} jobs",
        verb=verb,
        query=query,
        chosen=chosen,
        count=count,
        goes_on=goes_on,
        shown=shown,
        now=datetime.now(UTC),
    )


@router.post("/jobs/actions/run")
async def run_action(visit: Acts, request: Request) -> Response:
    """Do an action to the jobs that were chosen, or to some more of those that match, and say what was done so far.

    The page goes on by itself until no further job matches. What is left to do stands in its form alone, so it goes
    on as well when the server was started anew meanwhile, and stops with the page.
    """
    form = await _form(request)
    verb, query, chosen = _verb(form), _query(form), _chosen(form)
    if chosen:
        done = await act_on_chosen(visit.services, visit.caller, verb, chosen)
    else:
        cursor = form.only_text("cursor") or None
        if cursor is not None and not JOB_ID.fullmatch(cursor):
            raise InvalidRequest("is no id of a job", field="cursor")
        done = await act_on_matching(visit.services, visit.caller, verb, query.to_act(cursor=cursor))
    visit.forget()
    return await visit.page(
        "action_done",
        f"{done.changed:,} {_DONE[verb]}",
        verb=verb,
        done_word=_DONE[verb],
        query=query,
        done=done,
        changed=_number(form, "changed") + done.changed,
        skipped=_number(form, "skipped") + sum(each.count for each in done.skipped),
        total=_number(form, "total"),
    )


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


def _verb(form: Form) -> Verb:
    verb = form.only_text("verb")
    if verb not in get_args(Verb):
        raise InvalidRequest(f"must be one of {', '.join(get_args(Verb))}", field="verb")
    return cast(Verb, verb)


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


def _number(form: Form, name: str) -> int:
    text = form.only_text(name) or "0"
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise InvalidRequest("must be a whole number", field=name)
    return int(text)
