"""The pages of the actions on many jobs: how far each is, and the button that stops it."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Response

from omni_jobs.dashboard.audit import ACTORS
from omni_jobs.dashboard.fragments import POLLED_S, Fragment
from omni_jobs.dashboard.page_route import PageRoute
from omni_jobs.dashboard.visit import Acts, Looks, Visit
from omni_jobs.errors import NotFound
from omni_jobs.http.process import short_switch_interval
from omni_jobs.jobs import ActionVerb

router = APIRouter(route_class=PageRoute, include_in_schema=False)

ACTION_ID: Final = re.compile("action-[0-9a-f]{32}")
PARTICIPLES: Final[Mapping[ActionVerb, str]] = {
    "cancel": "cancelled",
    "retry": "retried",
    "advance": "advanced",
    "delete": "deleted",
}
"""What has become of jobs that an action has changed."""

_LISTED: Final = 100


async def _action_id(action_id: str) -> str:
    if not ACTION_ID.fullmatch(action_id):
        raise NotFound(f"there is no action {action_id!r:.80}", field="action_id")
    return action_id


ActionId = Annotated[str, Depends(_action_id)]


@router.get("/actions")
async def list_actions(visit: Looks) -> Response:
    """Show the newest actions."""
    return await visit.page("actions", "Actions", content=await _list(visit))


@router.get("/fragments/actions")
async def list_content(visit: Looks) -> Response:
    """Return what of the list changes."""
    return visit.answer(await _list(visit))


@router.get("/actions/{action_id}")
async def show_action(visit: Looks, action_id: ActionId) -> Response:
    """Show an action."""
    return await visit.page("action", "Action", content=await _content(visit, action_id), action_id=action_id)


@router.get("/fragments/actions/{action_id}")
async def action_content(visit: Looks, action_id: ActionId) -> Response:
    """Return what of the page changes."""
    return visit.answer(await _content(visit, action_id))


@router.post("/actions/{action_id}/stop")
async def stop_action(visit: Acts, action_id: ActionId) -> Response:
    """Stop an action."""
    stop = partial(visit.services.jobs.stop_action, action_id, visit.caller.sees, by=visit.caller.actor)
    await visit.services.list_threads.run(visit.caller.sees, stop)
    return visit.moved(f"/actions/{action_id}")


async def _list(visit: Visit) -> Fragment:
    def read() -> Mapping[str, Any]:
        with short_switch_interval():
            found = visit.services.jobs.actions(visit.caller.sees, at_most=_LISTED)
        return {"actions": found, "now": datetime.now(UTC), "actors": ACTORS, "participles": PARTICIPLES}

    return await visit.fragment("actions", read, kept_s=POLLED_S)


async def _content(visit: Visit, action_id: str) -> Fragment:
    def read() -> Mapping[str, Any]:
        with short_switch_interval():
            action = visit.services.jobs.action(action_id, visit.caller.sees)
        took = ((action.finished_at or action.changed_at) - action.created_at).total_seconds()
        return {
            "action": action,
            "now": datetime.now(UTC),
            "actors": ACTORS,
            "participles": PARTICIPLES,
            "per_s": action.done_with / took if took > 0 else 0.0,
        }

    return await visit.fragment("action", read, action_id, kept_s=POLLED_S)
