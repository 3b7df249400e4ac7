"""The page of quarantined jobs: those that kept killing their workers, with each loss, and what to do with them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response

from omni_jobs.dashboard.fragments import Fragment
from omni_jobs.dashboard.page_route import PageRoute
from omni_jobs.dashboard.visit import Looks, Visit
from omni_jobs.errors import Quarantined
from omni_jobs.http.process import short_switch_interval
from omni_jobs.http.request_parameters import JOB_ID
from omni_jobs.jobs import JobFilter
from omni_jobs.states import JobState

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_PAGE: Final = 25

Cursor = Annotated[str | None, Query(pattern=f"^{JOB_ID.pattern}$")]
"""The job behind which a page begins."""


@router.get("/quarantine")
async def show_quarantine(visit: Looks, cursor: Cursor = None) -> Response:
    """Show the jobs that are quarantined."""
    return await visit.page("quarantine", "Quarantine", content=await _content(visit, cursor), cursor=cursor)


@router.get("/fragments/quarantine")
async def quarantine_content(visit: Looks, cursor: Cursor = None) -> Response:
    """Return what of the page changes."""
    return visit.answer(await _content(visit, cursor))


async def _content(visit: Visit, cursor: str | None) -> Fragment:
    wanted = JobFilter(states=frozenset({JobState.FAILED}), error_code=Quarantined.code, tenant=visit.caller.sees)

    def read() -> Mapping[str, Any]:
        with short_switch_interval():
            page = visit.services.jobs.list(wanted, _PAGE, cursor, brief=True)
        return {
            "now": datetime.now(UTC),
            "jobs": page.jobs,
            "cursor": cursor,
            "older": page.next_cursor,
            "query": f"status={JobState.FAILED}&error_code={Quarantined.code}",
        }

    return await visit.fragment("quarantine", read, cursor)
