"""Queries: only names that a route knows, each once, and numbers as people write them."""

from __future__ import annotations

import re

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BeforeValidator

from omni_jobs.errors import InvalidRequest

__all__ = ["PlainNumber", "check_query"]


async def check_query(request: Request) -> None:
    """Raises InvalidRequest naming what the route does not know, or what is given twice."""
    if not request.scope["query_string"]:
        return
    route = request.scope["route"]
    known = [parameter.alias for parameter in route.dependant.query_params] if isinstance(route, APIRoute) else []
    seen = set()
    for name, _ in request.query_params.multi_items():
        if name not in known:
            there = ", ".join(known) or "none"
            raise InvalidRequest(f"unknown in this query; there are: {there}", field=f"{name:.64}")
        if name in seen:
            raise InvalidRequest("given twice", field=name)
        seen.add(name)


def _plain(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(r"-?[0-9]{1,40}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,4})?", value):
        raise ValueError("must be a number, like 5 or 0.5")
    return value


PlainNumber = BeforeValidator(_plain)
"""For a number of a query: Python would take 1_0 and blanks around it as well."""
