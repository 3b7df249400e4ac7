"""``Needs``: gives a route the ``Caller`` of its request, once that has the scope that the route needs.

Every route under /v1 has a parameter of it, and so has every page of the dashboard; a test looks at all of them. A
route that the dashboard reads also takes the session of a browser, from its cookie.
"""

from typing import Annotated

from fastapi import Depends, Request
from fastapi.routing import APIRoute

from omni_jobs.api.services import Services
from omni_jobs.api.session_cookie import session_of
from omni_jobs.errors import MissingScope, ServerBusy
from omni_jobs.http.places import Connection, holder_of
from omni_jobs.http.request_parameters import client_network
from omni_jobs.tenants.caller import Caller, Scope


class Needs:
    """A dependency of FastAPI: the request's caller."""

    def __init__(self, scope: Scope, *, takes_session: bool = False) -> None:
        """``scope``: what the caller must have. ``takes_session``: for the dashboard, and for routes that it reads.

        A route under /v1 that changes something takes none, because a page of the dashboard changes it by its own.
        """
        self.scope = scope
        self.takes_session = takes_session

    async def __call__(self, request: Request) -> Caller:
        """Return the caller, and note its tenant as that of the connection unless it sees all tenants.

        Raises MissingScope, ServerBusy if only a slow request of the same tenant had to end for this one, and what
        ``Callers.of`` raises.
        """
        services: Services = request.app.state.services
        session_id = session_of(request, services.transport) if self.takes_session else None
        caller = await services.callers.of(request.headers, session_id, client_network(request))
        request.state.caller = caller  # a page that says an error shows what this caller may open
        connection: Connection | None = request.scope["state"].get("connection")
        if connection is not None and not caller.sees_all:
            connection.tenant = caller.tenant
            if connection.in_place_of == holder_of(caller.tenant):
                raise ServerBusy("the server is full, and many requests of this tenant are slow")
        if not caller.may(self.scope):
            raise MissingScope(f"this needs a key with the scope {self.scope}")
        if self.scope is Scope.SUBMIT:
            await services.versions.refresh()  # before the route asks which version a name means
        return caller


def needs_key(route: APIRoute) -> bool:
    """Return whether a route is for callers alone, who show a key where they have keys."""
    return any(isinstance(each.call, Needs) for each in route.dependant.dependencies)


Submitter = Annotated[Caller, Depends(Needs(Scope.SUBMIT))]
"""The caller of a route that makes, changes or deletes jobs. Declare it as the first parameter, so that nothing is
read or checked for a caller who may not."""
Administrator = Annotated[Caller, Depends(Needs(Scope.ADMIN))]
"""The caller of a route for operators."""
Reader = Annotated[Caller, Depends(Needs(Scope.READ))]
"""The caller of a route that reads."""
Viewer = Annotated[Caller, Depends(Needs(Scope.READ, takes_session=True))]
"""The caller of a route that the dashboard reads, or links to."""
