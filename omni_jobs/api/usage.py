"""The route of usage: what tenants have used, by day, tenant, pipeline and stage."""

import re
from datetime import UTC, date, datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response
from pydantic import BeforeValidator, WithJsonSchema

from omni_jobs.api.job_filters import NAME, TENANT, tenant_of
from omni_jobs.api.needs import Reader
from omni_jobs.api.services import ServicesDep
from omni_jobs.errors import InvalidRequest
from omni_jobs.http.error_answers import errors
from omni_jobs.http.process import short_switch_interval
from omni_jobs.jobs import GROUPS
from omni_jobs.views import UsageReport

router = APIRouter(prefix="/v1/usage", tags=["usage"])

_USUAL_DAYS: Final = 30
_GROUP: Final = "|".join(GROUPS)
_BY: Final = f"^({_GROUP})(,({_GROUP})){{0,{len(GROUPS) - 1}}}$"
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DAY_SCHEMA: dict[str, Any] = {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}


def _day(value: object) -> object:
    """Return a day as it stands in a query. Pydantic alone would take a number for one, too. Raises ValueError."""
    if isinstance(value, str) and not _DATE.fullmatch(value):
        raise ValueError("a day is like 2026-01-05")
    return value


Day = Annotated[date | None, BeforeValidator(_day), WithJsonSchema(_DAY_SCHEMA)]


def _names(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(_BY, value):
        raise ValueError(f"must be one or more of {', '.join(GROUPS)}, with commas between them")
    return value


@router.get("", response_model=UsageReport, responses=errors(403, 503))
async def get_usage(
    caller: Reader,
    services: ServicesDep,
    first_day: Annotated[Day, Query(alias="from", description="UTC; default: 29 days before the last one")] = None,
    last_day: Annotated[Day, Query(alias="to", description="the last day, which is included; default: today")] = None,
    pipeline: Annotated[str | None, Query(pattern=NAME)] = None,
    tenant: Annotated[str | None, Query(pattern=TENANT, description="whose, where a caller sees all")] = None,
    by: Annotated[
        str,
        Query(
            pattern=_BY,
            description="by what it is added up",
            examples=["tenant,stage"],
        ),
        BeforeValidator(_names),
    ] = ",".join(GROUPS),
) -> Response:
    """Say what was used: by attempts that ended on these days, also of jobs that are deleted.

    The rows are those of the names in `by`, the newest day first; `total` is their sum. 422 where more than 10,000
    rows would come: ask for fewer days, or by less.
    """
    last = last_day or datetime.now(UTC).date()
    first = first_day or date.fromordinal(max(1, last.toordinal() - _USUAL_DAYS + 1))
    if first > last:
        raise InvalidRequest("the first day comes after the last one", field="from")
    whose = tenant_of(caller, tenant)

    def read() -> Response:  # a report may have thousands of rows, which would hold up the event loop
        with short_switch_interval():
            report = services.jobs.usage(first, last, by=by.split(","), pipeline=pipeline, tenant=whose)
            return Response(report.model_dump_json(), media_type="application/json")

    return await services.list_threads.run(caller.sees, read)
