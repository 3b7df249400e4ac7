"""The page of the audit: who did what to what, when."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Response

from omni_jobs.dashboard.fragments import Fragment
from omni_jobs.dashboard.page_route import PageRoute
from omni_jobs.dashboard.plug import child_of_label, label_of_process
from omni_jobs.dashboard.templates import shortened
from omni_jobs.dashboard.visit import Operates, Visit
from omni_jobs.http.process import short_switch_interval
from omni_jobs.http.request_parameters import JOB_ID
from omni_jobs.jobs import PastAct
from omni_jobs.tenants.key_store import ApiKeys, ApiKeyView

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_PAGE: Final = 50
_LONGEST_DETAILS: Final = 300  # characters
ACTORS: Final[Mapping[str, str]] = {
    "anyone": "anyone, without a key",
    "proxy": "a tenant of the proxy",
    "command": "a command on the database",
}
"""Who did something without a key, as a page calls it."""
WORDS: Final[Mapping[str, str]] = {
    "create_key": "made the key",
    "revoke_key": "revoked the key",
    "create_tenant": "made the tenant",
    "set_tenant": "set the tenant",
    "delete_tenant": "deleted the tenant",
    "cancel": "cancelled",
    "advance": "moved to the front",
    "retry": "retried",
    "delete": "deleted",
    "fork": "forked",
    "begin_action": "began the action",
    "stop_action": "stopped the action",
    "kill": "killed the process",
    "pause": "paused the stage",
    "resume": "resumed the stage",
    "drain": "drained the worker",
    "undrain": "resumed the worker",
    "drain_version": "drained the version",
    "serve_version": "let serve the version",
}

_Target = Annotated[str | None, Query(max_length=255, description="a job, stage, key or tenant")]
_Before = Annotated[str | None, Query(pattern=r"^[0-9]{1,12}(\.[0-9]{1,9})?,act-[0-9a-f]{16,36}$")]


@dataclass(frozen=True, slots=True)
class ActLine:
    """An action as the page shows it. ``key`` is its actor's, if a key of the caller's tenants did it."""

    act: PastAct
    at: datetime
    target: str  # as the pages call it
    actor: str
    key: ApiKeyView | None
    word: str
    link: str | None  # the path of what it was done to, if that has a page
    details: str


@router.get("/audit")
async def show_audit(visit: Operates, target: _Target = None, before: _Before = None) -> Response:
    """Show the newest actions, of all or on one target."""
    target = target or None
    content = await _content(visit, target, before)
    query = _query(target, before)
    return await visit.page("audit", "Audit", content=content, target=target, query=query)


@router.get("/fragments/audit")
async def audit_content(visit: Operates, target: _Target = None, before: _Before = None) -> Response:
    """Return what of the page changes."""
    return visit.answer(await _content(visit, target or None, before))


async def _content(visit: Visit, target: str | None, before: str | None) -> Fragment:
    def read() -> Mapping[str, Any]:
        at, _, id_ = (before or "").partition(",")
        services, sees = visit.services, visit.caller.sees
        with short_switch_interval():
            child = None if target is None else child_of_label(target)
            acts = services.jobs.acts(
                tenant=sees, target=child, before=(float(at), id_) if before else None, at_most=_PAGE + 1
            )
            keys = {key.id: key for key in ApiKeys(services.db).all(sees)} if acts else {}
        lines = [_line(act, keys) for act in acts[:_PAGE]]
        last = lines[-1].act if len(acts) > _PAGE else None
        return {
            "now": datetime.now(UTC),
            "lines": lines,
            "target": target,
            "newest": _query(target, None) if before else None,
            "older": None if last is None else _query(target, f"{last.at!r},{last.id}"),
        }

    return await visit.fragment("audit", read, target, before)


def _line(act: PastAct, keys: Mapping[str, ApiKeyView]) -> ActLine:
    details = ", ".join(f"{name}: {_value(value)}" for name, value in act.details.items() if value not in (None, {}))
    return ActLine(
        act,
        datetime.fromtimestamp(act.at, UTC),
        label_of_process(act.target) if act.action == "kill" else act.target,
        ACTORS.get(act.actor, act.actor),
        keys.get(act.actor),
        WORDS.get(act.action, act.action.replace("_", " ")),
        _link(act),
        shortened(details, _LONGEST_DETAILS),
    )


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name} {_value(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    return value if isinstance(value, str) else json.dumps(value)


def _link(act: PastAct) -> str | None:
    """Return the path of the page of what an action was done to; None: it has none, or has it no longer."""
    if JOB_ID.fullmatch(act.target):
        return None if act.action == "delete" else f"/jobs/{act.target}"
    if act.action in ("begin_action", "stop_action"):
        return f"/actions/{act.target}"
    if act.action in ("pause", "resume"):
        return "/stages"
    if act.action in ("drain", "undrain"):
        return "/workers"
    if act.tenant is not None and act.action != "delete_tenant":
        return f"/tenants/{quote(act.tenant)}"
    return None


def _query(target: str | None, before: str | None) -> str:
    given = {name: value for name, value in (("target", target), ("before", before)) if value}
    return f"?{urlencode(given)}" if given else ""
