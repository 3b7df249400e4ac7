"""The routes: the file of a noun is a leaf, which the app alone imports; each route says which scope it needs."""

import ast
from pathlib import Path
from typing import get_args

import pytest
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import get_flat_dependant
from fastapi.routing import APIRoute
from starlette.routing import Match

import omni_jobs.api
from omni_jobs.api.needs import Needs
from omni_jobs.dashboard.page_route import PageRoute
from omni_jobs.dashboard.plug import PlugsDep
from omni_jobs.http.browsers import SHOWN_TYPES
from omni_jobs.http.request_parameters import check_query
from omni_jobs.settings import Settings
from omni_jobs.tenants.caller import Scope
from omni_jobs.web.app import create_app
from omni_jobs.web.exact_routes import ExactRoutes

HERE = Path(omni_jobs.api.__path__[0])
NOUNS = {file.stem for file in HERE.glob("*.py") if "\nrouter = APIRouter(" in file.read_text(encoding="utf-8")}
APP = HERE.parent / "web" / "app.py"


@pytest.mark.parametrize("file", sorted(HERE.parent.rglob("*.py")), ids=lambda file: f"{file.parent.name}.{file.stem}")
def test_the_app_alone_imports_a_noun(file: Path) -> None:
    imports = [each for each in ast.walk(ast.parse(file.read_bytes())) if isinstance(each, ast.ImportFrom)]
    imported = {alias.name for each in imports if each.module == "omni_jobs.api" for alias in each.names}
    imported |= {each.module.split(".")[2] for each in imports if (each.module or "").startswith("omni_jobs.api.")}
    assert imported & NOUNS == (NOUNS if file == APP else set())


def routes_of_api() -> list[APIRoute]:
    return [route for route in create_app(Settings()).routes if isinstance(route, APIRoute)]


OPEN = {"GET /healthz", "GET /readyz", "DELETE /v1/session"}
"""Health, and the end of a session, for which a key need not be good any more."""
OPEN_PAGES = {"GET /signin", "POST /signin", "POST /signout", "GET /static/{version}/{name:path}"}
"""The sign-in and the sign-out, and files that hold no data."""
SCOPES = {"GET": Scope.READ, "POST": Scope.SUBMIT, "DELETE": Scope.SUBMIT}
OF_OPERATORS = (
    *("/workers", "/fragments/workers", "/stages/{pipeline}/{stage}/pause", "/stages/{pipeline}/{stage}/resume"),
    *("/tenants", "/fragments/tenants", "/tenants/{name}", "/tenants/{name}/limits", "/tenants/{name}/keys"),
    *("/workers/{worker_id}/drain", "/workers/{worker_id}/resume", "/keys/{key_id}/revoke"),
    *("/audit", "/fragments/audit", "/fragments/charts", "/plug", "/fragments/plug", "/plug/kills"),
    *("/plug/streams", "/plug/streams/{stream}/jobs/{number}"),
)
"""Pages, and what they do, that concern others than the caller's tenant, or its keys."""
OTHERS = {
    "/v1/session": Scope.READ,
    "/v1/estimates": Scope.ADMIN,
    "/metrics": Scope.ADMIN,
    "/v1/scaling": Scope.ADMIN,
    "/v1/pipelines/versions": Scope.ADMIN,
    "/v1/pipelines/{reference}/drain": Scope.ADMIN,
    "/v1/pipelines/{reference}/serve": Scope.ADMIN,
    "/v1/pipelines/{name}/stages/{stage}/pause": Scope.ADMIN,
    "/v1/pipelines/{name}/stages/{stage}/resume": Scope.ADMIN,
    "/v1/workers/{worker}/drain": Scope.ADMIN,
    "/v1/workers/{worker}/resume": Scope.ADMIN,
    **dict.fromkeys(OF_OPERATORS, Scope.ADMIN),
}


BEFORE_ANY = (check_query, get_args(PlugsDep)[1].dependency)
"""What comes before the scope: a page that is not there asks nobody to sign in."""


def test_every_route_needs_a_scope_before_anything_else() -> None:
    open_routes = set()
    for route in routes_of_api():
        (method,) = route.methods
        is_page = not route.include_in_schema
        needs = needs_of(route.dependant)
        if not needs:
            open_routes.add(f"{method} {route.path}")
            continue
        (need,) = needs
        first = next(each for each in route.dependant.dependencies if each.call not in BEFORE_ANY)
        assert need in (first.call, *needs_of(first)), route.path
        assert need.scope is OTHERS.get(route.path, SCOPES[method]), route.path
        assert is_page or method == "GET" or not need.takes_session, route.path
        assert not is_page or (need.takes_session and isinstance(route, PageRoute)), route.path
    assert open_routes == OPEN | OPEN_PAGES


def needs_of(dependant: Dependant) -> list[Needs]:
    """What a dependant needs itself, or by the visit of a page, which checks the origin of a POST."""
    return [
        need
        for each in dependant.dependencies
        for need in ([each.call] if isinstance(each.call, Needs) else needs_of(each))
    ]


@pytest.mark.parametrize("text", ["1_0", " 1", "1 ", "+1", "\u0661", "x", ""])
def test_a_number_of_a_query_or_a_header_is_one_as_the_document_says(text: str) -> None:
    read = []
    for route in routes_of_api():
        flat = get_flat_dependant(route.dependant)
        for parameter in (*flat.query_params, *flat.header_params):
            if _is_number(parameter.field_info.annotation):
                _, wrong = parameter.validate(text, {}, loc=("query", parameter.alias))
                assert wrong, f"{route.path} {parameter.alias}"
                read.append(parameter.alias)
    assert {"limit", "wait", "starting_after", "last-event-id", "created_after"} <= set(read)


def _is_number(annotation: object) -> bool:
    return bool({int, float} & {annotation, *get_args(annotation)})


OF_ANY_REQUEST = {"400", "408", "421", "431", "503"}
"""What the connection, the known pages and a full or stopping server answer, whatever the route."""


def test_the_document_has_what_any_request_may_be_answered() -> None:
    for path, methods in create_app(Settings()).openapi()["paths"].items():
        for method, operation in methods.items():
            own = set() if path in ("/healthz", "/readyz") else {"401", "403", "422", "429"}
            assert OF_ANY_REQUEST | own <= set(operation["responses"]), f"{method} {path}"


def test_the_document_of_a_server_with_keys_says_which_routes_take_one() -> None:
    document = create_app(Settings(auth="keys")).openapi()
    (name,) = document["components"]["securitySchemes"]
    assert document["components"]["securitySchemes"][name] == {"type": "http", "scheme": "bearer"}
    without = {
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if operation.get("security") != [{name: []}]
    }
    assert without == OPEN
    assert "security" not in str(create_app(Settings()).openapi())


def test_the_document_has_the_types_in_which_artifacts_are_served() -> None:
    paths = create_app(Settings()).openapi()["paths"]
    for path, kind in (("/v1/jobs/{job_id}/artifacts/{name}", ""), ("/v1/videos/video_{digits}/content", "video/")):
        shown = {each for each in SHOWN_TYPES if each.startswith(kind)}
        assert set(paths[path]["get"]["responses"]["200"]["content"]) == shown | {"application/octet-stream"}


def test_a_path_without_parameters_is_found_at_once_and_as_all_routes_would_find_it() -> None:
    """Also below a prefix. What no route has the method for matches nothing, so that the others say why."""
    first, *others = (
        each for each in create_app(Settings()).routes if not hasattr(each, "path") or each.path != "/openapi.json"
    )
    assert isinstance(first, ExactRoutes)
    plain = [each for each in routes_of_api() if "{" not in each.path]
    assert len(plain) > 40
    for route in plain:
        for method in route.methods:
            for root in ("", "/below"):
                scope = {"type": "http", "path": root + route.path, "root_path": root, "method": method}
                usual = next(
                    found for each in others for match, found in [each.matches(dict(scope))] if match is Match.FULL
                )
                match, found = first.matches(dict(scope))
                assert (match, found["endpoint"]) == (Match.FULL, usual["endpoint"]), (method, route.path)
    for method, path in (("PUT", "/v1/jobs"), ("GET", "/v1/jobs/x"), ("GET", "/v1/jobs/"), ("GET", "")):
        assert first.matches({"type": "http", "path": path, "root_path": "", "method": method}) == (Match.NONE, {})
