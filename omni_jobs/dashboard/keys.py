"""Pages of API keys: make one for a tenant, which is shown once, and revoke one after a question."""

from functools import partial
from typing import Final

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request, Response

from omni_jobs.dashboard.page_route import PageRoute
from omni_jobs.dashboard.tenants import seen_tenant
from omni_jobs.dashboard.visit import Operates, Visit
from omni_jobs.errors import InvalidRequest, NotFound
from omni_jobs.http.form_reader import Form, read_form
from omni_jobs.http.request_parameters import NUMBER
from omni_jobs.tenants.key_store import ApiKeys, ApiKeyView, NewApiKey

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_DAY_S: Final = 86_400.0
_MOST_FORM: Final = 16 << 10


@router.post("/tenants/{name}/keys")
async def create_key(visit: Operates, name: str, request: Request) -> Response:
    """Make a key, and show it. No cache keeps the page, and nothing can show the key again."""
    form = await read_form(request, _MOST_FORM, max_files=0)
    life_s, scopes, label = _life_s(form), form.texts.get("scope", []), (form.only_text("label") or "").strip() or None

    def create() -> NewApiKey:
        tenant = seen_tenant(visit, name)
        return ApiKeys(visit.services.db).create(
            tenant.name, scopes, name=label, expires_in_s=life_s, by=visit.caller.actor
        )

    made = await run_sync(create)
    visit.forget()
    answer = await visit.page("key_made", "A new key", made=made)
    answer.headers["Cache-Control"] = "no-store"
    del answer.headers["ETag"]
    return answer


@router.get("/keys/{key_id}/revoke")
async def ask_revoke(visit: Operates, key_id: str) -> Response:
    """Ask whether a key is to be revoked."""
    key = await run_sync(partial(_seen, visit, key_id))
    return await visit.page("key_revoke", "Revoke a key", key=key)


@router.post("/keys/{key_id}/revoke")
async def revoke_key(visit: Operates, key_id: str) -> Response:
    """Revoke a key, and go to its tenant."""

    def revoke() -> ApiKeyView:
        _seen(visit, key_id)
        return ApiKeys(visit.services.db).revoke(key_id, by=visit.caller.actor)

    key = await run_sync(revoke)
    return visit.moved(f"/tenants/{key.tenant}")


def _seen(visit: Visit, key_id: str) -> ApiKeyView:
    """Return a key of a tenant that the caller sees. Raises NotFound."""
    for key in ApiKeys(visit.services.db).all(visit.caller.sees):
        if key.id == key_id:
            return key
    raise NotFound(f"there is no key {key_id!r:.80}", field="key_id")


def _life_s(form: Form) -> float | None:
    """Return how long a key is to live, in seconds; None: until it is revoked. Raises InvalidRequest."""
    text = (form.only_text("days") or "").strip()
    if text and not NUMBER.fullmatch(text):
        raise InvalidRequest("must be a number of days, or empty for a key without an end", field="days")
    return float(text) * _DAY_S if text else None
