"""The parameters of the routes of OpenAI's API: which of them a route takes, ignores or refuses."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from omni_jobs.errors import InvalidRequest


class Use(StrEnum):
    """What a route does with a parameter."""

    TAKEN = "taken"
    IGNORED = "ignored"  # the answer names it in X-Ignored
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a route. ``note``: what it means here, or why it is not taken; docs/openai.md shows it."""

    name: str
    use: Use
    note: str


@dataclass(frozen=True, slots=True)
class ParameterTable:
    """The parameters of a route. A body is a JSON object, or a form's fields by name."""

    route: str
    parameters: tuple[Parameter, ...]

    def sort(self, body: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Return the parameters of a body that are taken, and the names of those that are ignored. Null is no value.

        Raises InvalidRequest naming a parameter that is refused, or that the route does not know.
        """
        known = {parameter.name: parameter for parameter in self.parameters}
        taken: dict[str, Any] = {}
        ignored = []
        for name, value in body.items():
            parameter = known.get(name)
            if parameter is None:
                raise InvalidRequest("unknown key", field=f"{name:.64}")
            if value is None:
                continue
            if parameter.use is Use.REFUSED:
                raise InvalidRequest(f"not taken: {parameter.note}", field=name)
            if parameter.use is Use.IGNORED:
                ignored.append(name)
            else:
                taken[name] = value
        return taken, ignored


def taken(name: str, note: str = "as in `POST /v1/jobs`") -> Parameter:
    """Return a parameter that a route takes. ``note``: what it means."""
    return Parameter(name, Use.TAKEN, note)


def ignored(name: str, note: str) -> Parameter:
    """Return a parameter that a route ignores. ``note``: why."""
    return Parameter(name, Use.IGNORED, note)


def refused(name: str, note: str) -> Parameter:
    """Return a parameter that a route refuses. ``note``: why, or what to send instead."""
    return Parameter(name, Use.REFUSED, note)
