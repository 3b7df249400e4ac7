"""What routes read of a request beside its body: a job's id, headers, the numbers of a query, the client's network."""

import ipaddress
import re
from collections.abc import Iterable
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final, get_args, get_origin

from fastapi import Depends, Header, Request
from fastapi.routing import APIRoute
from pydantic import BeforeValidator
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from omni_jobs.errors import InvalidRequest, NotFound

_IPV6_BITS = 64  # of an address; who has one has all that begin alike
JOB_ID = re.compile(r"job-[0-9a-f]{32}")
LONGEST_WAIT_S: Final = 60
"""The longest that a request may wait for its job's end, in seconds."""
_WAIT = re.compile(r'\s*wait\s*=\s*"?([0-9]{1,9})"?\s*(;.*)?', re.IGNORECASE)
NUMBER = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,4})?")
"""A number as a query gives it."""


async def _job_id(request: Request, job_id: str) -> str:  # async, because FastAPI calls other functions on a thread
    if not JOB_ID.fullmatch(job_id):
        path = request.scope["route"].path.replace("{job_id}", job_id)
        if any(isinstance(each, APIRoute) and each.path == path for each in request.app.routes):
            raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED)  # a path of its own, such as /v1/jobs/bulk
        raise NotFound(f"there is no job {job_id!r:.80}", field="job_id")
    return job_id


JobId = Annotated[str, Depends(_job_id)]
"""The job's id in a path. A text that is no id of a job is answered as the id of an unknown job."""

CancelAfter = Annotated[
    str | None,
    Header(
        alias="Cancel-After",
        description="time from the submit until the job stops by itself: seconds, or 90s, 15m, 2h; 1 s to 30 days",
        examples=["15m"],
    ),
]


def idempotency_key_header(longest: int, use: str) -> Any:
    """Return a declaration of the header ``Idempotency-Key`` for a route: its greatest length and its ``use``."""
    return Header(
        alias="Idempotency-Key",
        pattern=f"^[!-~]{{1,{longest}}}$",
        description=f"1 to {longest} visible ASCII characters; {use}",
    )


async def check_query(request: Request) -> None:
    """Raise InvalidRequest for a parameter that the route does not know, or that comes twice and is no list."""
    if not request.scope["query_string"]:
        return
    route = request.scope["route"]
    parameters = route.dependant.query_params if isinstance(route, APIRoute) else []
    known = [parameter.alias for parameter in parameters]
    repeated = {parameter.alias for parameter in parameters if _is_list(parameter.field_info.annotation)}
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name not in known:
            raise InvalidRequest(f"unknown in this query; known: {', '.join(known) or 'none'}", field=f"{name:.64}")
        if name in seen - repeated:
            raise InvalidRequest("given twice", field=name)
        seen.add(name)


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is list or any(get_origin(each) is list for each in get_args(annotation))


def _plain(value: object, what: str) -> object:
    if isinstance(value, str) and not NUMBER.fullmatch(value):
        raise ValueError(f"must be {what}")
    return value


PlainNumber = BeforeValidator(partial(_plain, what="a number, like 5 or 0.5"))
"""For a number of a query or a header. Python's own reading would accept 1_0, and blanks around the number."""
WholeNumber = BeforeValidator(partial(_plain, what="a whole number, like 5"))
"""``PlainNumber`` for an ``int``."""


def preferred_wait(headers: Iterable[str]) -> int:
    """Return the seconds of the first ``wait`` in headers ``Prefer`` (RFC 7240), LONGEST_WAIT_S at most; 0: none.

    A preference that cannot be read is none, as the RFC says.
    """
    for preference in ",".join(headers).split(","):
        wait = _WAIT.fullmatch(preference)
        if wait is not None:
            return min(int(wait[1]), LONGEST_WAIT_S)
    return 0


def network_of(address: str) -> str:
    """Return the network of a client's address: that of the first 64 bits for IPv6, else the address itself."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address  # of a Unix socket, or what a trusted proxy wrote
    if ip.version == 4 or ip.ipv4_mapped is not None:
        return str(ip if ip.version == 4 else ip.ipv4_mapped)
    return str(ipaddress.ip_network((ip.packed, _IPV6_BITS), strict=False))


def client_network(request: HTTPConnection) -> str:
    """Return the network of a request's client, which is "" for one without an address."""
    return network_of(request.client.host) if request.client else ""
