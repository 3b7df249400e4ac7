"""``ExactRoutes``: finds the routes whose paths have no parameter by the path, before all routes are tried in turn."""

from collections import defaultdict
from collections.abc import Iterable

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send


class ExactRoutes(BaseRoute):
    """A route that stands before these routes. It answers as the one with just the path and method asked for.

    Where there is none it matches nothing, and those behind it say why. To try each of a hundred routes takes longer
    than all else of a request for a fragment that has not changed.
    """

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        of_paths: dict[str, list[APIRoute]] = defaultdict(list)
        for route in routes:
            if isinstance(route, APIRoute) and "{" not in route.path:
                of_paths[route.path].append(route)
        self._routes = dict(of_paths)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return the match of the route for this path and method; no match if there is none."""
        if scope["type"] == "http":
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            for route in self._routes.get(path, ()):
                match, found = route.matches(scope)
                if match is Match.FULL:
                    return match, found
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the route answer that has matched."""
        await scope["route"].handle(scope, receive, send)
