"""Routes of the sign-in: a form takes an API key and begins a session, whose cookie holds a random id.

The key is kept nowhere. Where callers have no keys there is nothing to sign in to, and the form leads to the overview.
"""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from starlette.datastructures import Headers

from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.api.session_cookie import drop_session, keep_session, session_of
from omni_jobs.dashboard.page_route import PageRoute, note_error
from omni_jobs.dashboard.templates import rendered
from omni_jobs.dashboard.visit import PAGE_HEADERS, check_page, frame_of, moved
from omni_jobs.errors import InvalidRequest, MissingScope, OmniJobsError
from omni_jobs.http.error_answers import shape_of
from omni_jobs.http.form_reader import read_form
from omni_jobs.http.request_parameters import client_network
from omni_jobs.tenants.caller import Scope

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_MOST_FORM: Final = 16 << 10
_To = Annotated[str, Query(max_length=2000)]


@router.get("/signin")
async def sign_in_form(request: Request, services: ServicesDep, to: _To = "/") -> Response:
    """Show the form."""
    if services.callers.auth != "keys":
        return moved(services.settings.root_path, "/")
    return _form(request, _own(to))


@router.post("/signin")
async def sign_in(request: Request, services: ServicesDep) -> Response:
    """Begin a session with the key of the form, and go on to the page that was asked for."""
    check_page(request)
    form = await read_form(request, _MOST_FORM, max_files=0, max_texts=2, max_text_bytes=_MOST_FORM)
    to = _own(form.only_text("to") or "/")
    try:
        session_id = await _begun(request, services, (form.only_text("key") or "").strip())
    except OmniJobsError as error:
        note_error(request, error)
        return _form(request, to, error)
    answer = moved(services.settings.root_path, to)
    keep_session(answer, session_id, request, services.transport)
    return answer


@router.post("/signout")
async def sign_out(request: Request, services: ServicesDep) -> Response:
    """End the session of this browser. The key stays valid."""
    check_page(request)
    session_id = session_of(request, services.transport)
    if session_id is not None:
        await services.callers.end_session(session_id, client_network(request))
    answer = moved(services.settings.root_path, "/signin")
    drop_session(answer, request, services.transport)
    return answer


async def _begun(request: Request, services: Services, key: str) -> str:
    """Begin a session with a key. Raises Unauthenticated, MissingScope, and what the callers raise."""
    if not key.isascii() or not key.isprintable():
        raise InvalidRequest("a key has letters, digits, - and _ alone", field="key")
    headers = Headers({"authorization": f"Bearer {key}"})
    caller = await services.callers.of(headers, None, client_network(request))
    if not caller.may(Scope.READ):
        raise MissingScope(f"this needs a key with the scope {Scope.READ}")
    return await services.callers.begin_session(headers)


def _own(path: str) -> str:
    """Return a path of this server; the overview for what would lead elsewhere."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) else "/"


def _form(request: Request, to: str, error: OmniJobsError | None = None) -> Response:
    shape = None if error is None else shape_of(error)
    html = rendered("signin.html", **frame_of(request, None), page="signin", title="Sign in", to=to, error=shape)
    status = 200 if error is None else error.http_status
    return Response(html, status, {**PAGE_HEADERS, "Cache-Control": "no-store"}, media_type="text/html")
