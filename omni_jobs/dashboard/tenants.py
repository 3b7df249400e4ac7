"""The pages of tenants: weights, limits and use; of each its keys. Who sees all tenants makes and changes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from typing import Any, Final

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request, Response

from omni_jobs.dashboard.fragments import Fragment
from omni_jobs.dashboard.page_route import PageRoute
from omni_jobs.dashboard.templates import bytes_text
from omni_jobs.dashboard.visit import Operates, Visit
from omni_jobs.errors import InvalidRequest, MissingScope, NotFound
from omni_jobs.http.form_reader import Form, read_form
from omni_jobs.http.process import short_switch_interval
from omni_jobs.http.request_parameters import NUMBER
from omni_jobs.tenants.caller import Scope
from omni_jobs.tenants.key_store import ApiKeys, ApiKeyView
from omni_jobs.tenants.tenant_limits import Limits
from omni_jobs.tenants.tenant_store import Tenants, TenantView
from omni_jobs.views import UsageView

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_DAYS: Final = 30
_MOST: Final = 500
_MOST_KEYS: Final = 500
_MOST_FORM: Final = 16 << 10
_MOST_DIGITS: Final = 16
_LIMITS: Final = tuple(Limits.model_fields)


@dataclass(frozen=True, slots=True)
class TenantLine:
    """A tenant and its work. ``tenant`` is None for one that nobody has made: a proxy names it, or it has no key."""

    name: str
    tenant: TenantView | None
    waiting: int  # jobs that nobody has started
    in_progress: int
    used: UsageView  # in the last days
    keys: int  # that are neither revoked nor expired


@router.get("/tenants")
async def show_tenants(visit: Operates) -> Response:
    """Show the tenants."""
    return await visit.page("tenants", "Keys and tenants", content=await _content(visit), may_change=_changes(visit))


@router.get("/fragments/tenants")
async def tenants_content(visit: Operates) -> Response:
    """Return what of the page changes."""
    return visit.answer(await _content(visit))


async def _content(visit: Visit) -> Fragment:
    def read() -> Mapping[str, Any]:
        with short_switch_interval():
            lines = _lines(visit)
        return {
            "lines": lines[:_MOST],
            "others": max(0, len(lines) - _MOST),
            "limits_text": limits_text,
            "days": _DAYS,
            "auth": visit.services.callers.auth,
        }

    return await visit.fragment("tenants", read)


def _lines(visit: Visit) -> list[TenantLine]:
    jobs, sees, now = visit.services.jobs, visit.caller.sees, datetime.now(UTC)
    made = {each.name: each for each in Tenants(visit.services.db).all() if sees in (None, each.name)}
    waiting: dict[str, int] = {}
    for (_, tenant), count in jobs.backlog().items():
        waiting[tenant] = waiting.get(tenant, 0) + count
    in_progress = jobs.jobs_in_progress()
    report = jobs.usage(_first_day(), now.date(), by=["tenant"], tenant=sees)
    used = {str(row.tenant): row.usage for row in report.rows}
    keys: dict[str, int] = {}
    for key in ApiKeys(visit.services.db).all(sees):
        keys[key.tenant] = keys.get(key.tenant, 0) + (key_state(key, now) in ("good", "ends soon"))
    names = sorted({*made, *waiting, *in_progress, *used}) if sees is None else [sees]
    return [
        TenantLine(
            name,
            made.get(name),
            waiting.get(name, 0),
            in_progress.get(name, 0),
            used.get(name, UsageView()),
            keys.get(name, 0),
        )
        for name in names
    ]


@router.post("/tenants")
async def create_tenant(visit: Operates, request: Request) -> Response:
    """Make a tenant, and go to its page."""
    _check_changes(visit)
    form = await read_form(request, _MOST_FORM, max_files=0)
    name, weight = form.only_text("name") or "", _weight(form)
    tenants = Tenants(visit.services.db)
    await run_sync(partial(tenants.create, name, 1.0 if weight is None else weight, by=visit.caller.actor))
    return visit.moved(f"/tenants/{name}")


@router.get("/tenants/{name}")
async def show_tenant(visit: Operates, name: str) -> Response:
    """Show a tenant: its limits beside what it has in use, and its keys."""

    def read() -> Mapping[str, Any]:
        with short_switch_interval():
            return _read_tenant(visit, name)

    return await visit.page("tenant", name, content=await visit.fragment("tenant", read, name))


def _read_tenant(visit: Visit, name: str) -> Mapping[str, Any]:
    services, now = visit.services, datetime.now(UTC)
    tenant = seen_tenant(visit, name)
    waiting = {pipeline: count for (pipeline, its), count in services.jobs.backlog().items() if its == name}
    used = services.jobs.usage(_first_day(), now.date(), by=["pipeline"], tenant=name)
    keys = ApiKeys(services.db).all(name)
    in_use: dict[str, int | None] = {
        "queued_jobs": max(waiting.values(), default=0),
        "running_jobs": services.jobs.jobs_in_progress().get(name, 0),
        "requests_per_minute": None,
        "media_bytes": services.jobs.media_bytes(name),
        "stored_bytes": services.jobs.stored_bytes(name),
    }
    return {
        "now": now,
        "tenant": tenant,
        "in_use": in_use,
        "limit_words": _WORDS,
        "waiting": waiting,
        "used": used,
        "days": _DAYS,
        "keys": list(reversed(keys))[:_MOST_KEYS],
        "other_keys": max(0, len(keys) - _MOST_KEYS),
        "key_state": key_state,
        "scopes": list(Scope),
        "may_change": _changes(visit),
        "auth": services.callers.auth,
    }


@router.post("/tenants/{name}/limits")
async def set_tenant(visit: Operates, name: str, request: Request) -> Response:
    """Set the weight and the limits that the form changes. Those it leaves as they were shown stay as they are."""
    _check_changes(visit)
    form = await read_form(request, _MOST_FORM, max_files=0)
    weight = _weight(form) if _is_changed(form, "weight") else None
    limits = {limit: _number(form, limit) for limit in _LIMITS if _is_changed(form, limit)}

    def change() -> None:
        tenant = seen_tenant(visit, name)
        Tenants(visit.services.db).set(tenant.name, weight, limits, by=visit.caller.actor)

    await run_sync(change)
    return visit.moved(f"/tenants/{name}")


def seen_tenant(visit: Visit, name: str) -> TenantView:
    """Return a tenant that the caller sees. Raises NotFound. Call it on a thread."""
    if visit.caller.sees in (None, name):
        for tenant in Tenants(visit.services.db).all():
            if tenant.name == name:
                return tenant
    raise NotFound(f"there is no tenant {name!r:.80}", field="name")


def key_state(key: ApiKeyView, now: datetime) -> str:
    """Return how a key stands: good, ends soon (within 14 days), expired or revoked."""
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is None:
        return "good"
    left_s = (key.expires_at - now).total_seconds()
    return "expired" if left_s <= 0 else "ends soon" if left_s < _SOON_S else "good"


def limits_text(limits: Limits) -> Sequence[str]:
    """Return the limits that are set, each as a person says it."""
    return [
        f"{_WORDS[name]}: {bytes_text(number) if name.endswith('_bytes') else format(number, ',')}"
        for name, number in limits.model_dump(exclude_none=True).items()
    ]


_SOON_S: Final = 14 * 86_400.0
_WORDS: Final[Mapping[str, str]] = {
    "queued_jobs": "waiting jobs of a pipeline",
    "running_jobs": "jobs in progress",
    "requests_per_minute": "requests a minute",
    "media_bytes": "media of unfinished jobs",
    "stored_bytes": "stored",
}


def _changes(visit: Visit) -> bool:
    """Return whether the caller may change tenants: limits bind a tenant, so none sets its own."""
    return visit.caller.sees_all


def _check_changes(visit: Visit) -> None:
    if not _changes(visit):
        raise MissingScope("a tenant's key changes no tenant: omni-jobs tenants create and set do, on the database")


def _first_day() -> date:
    return date.fromordinal(datetime.now(UTC).date().toordinal() - _DAYS + 1)


def _is_changed(form: Form, name: str) -> bool:
    return (form.only_text(name) or "").strip() != (form.only_text(f"was_{name}") or "")


def _weight(form: Form) -> float | None:
    text = (form.only_text("weight") or "").strip()
    if text and not NUMBER.fullmatch(text):
        raise InvalidRequest("must be a number, like 2 or 0.5", field="weight")
    return float(text) if text else None


def _number(form: Form, name: str) -> int | None:
    """Return a limit as a form has it; None for an empty field, which takes the limit away. Raises InvalidRequest."""
    text = (form.only_text(name) or "").strip()
    if text and not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise InvalidRequest("must be a whole number, or empty for no limit", field=name)
    return int(text) if text else None
