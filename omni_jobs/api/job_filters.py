"""Filters of jobs as clients write them: in the query of a list, and in the body of an action on many jobs."""

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema

from omni_jobs.errors import InvalidRequest, MissingScope
from omni_jobs.http.request_parameters import JOB_ID, NUMBER
from omni_jobs.jobs import JobFilter
from omni_jobs.requests.deadline import unix_seconds
from omni_jobs.requests.job_request import refuse
from omni_jobs.requests.json_body import parse_body
from omni_jobs.states import JobState
from omni_jobs.tenants.caller import Caller

MOST_METADATA: Final = 5
"""The most names and values of metadata that one filter has."""
NAME: Final = "^[a-z][a-z0-9_]{0,39}$"
"""The pattern of the names of pipelines and stages, and of codes of errors."""
REFERENCE: Final = "^[a-z][a-z0-9_]{0,39}(@[0-9A-Za-z.-]{1,20})?$"
"""The pattern of NAME or NAME@VERSION of a pipeline."""

VERSION: Final = "^[0-9A-Za-z.-]{1,20}$"
"""The pattern of the version of a pipeline."""

_PAIR: Final = re.compile(r"^[^=]{0,64}=[\s\S]{0,512}$")
Pair = Annotated[str, WithJsonSchema({"type": "string", "pattern": _PAIR.pattern})]
"""NAME=VALUE in a query. ``pairs_of`` checks it, because pydantic would name an item by its number alone."""
_STATES: dict[str, Any] = {"anyOf": [{"type": "string", "enum": [state.value for state in JobState]}, {"type": "null"}]}
_UNIX_SECONDS: dict[str, Any] = {"type": "number", "minimum": 0, "exclusiveMaximum": 1e11}
_TIME: dict[str, Any] = {"anyOf": [{"type": "string", "format": "date-time"}, _UNIX_SECONDS, {"type": "null"}]}
TENANT: Final = r"^[!-~]{1,64}$"
_NO_FILTERS: Final = {"cursor", "limit", "dry_run", "from_stage", "version"}
"""The fields of an action that do not say which jobs match."""


def time_of_query(value: object) -> float | None:
    """Return the seconds since 1970 that a text in a query gives, as a number or as RFC 3339. Raises ValueError."""
    return unix_seconds(float(value) if isinstance(value, str) and NUMBER.fullmatch(value) else value)


TimeOfQuery = Annotated[float | None, BeforeValidator(time_of_query), WithJsonSchema(_TIME)]
"""A time of a query, in seconds since 1970."""
Time = Annotated[float | None, BeforeValidator(unix_seconds), WithJsonSchema(_TIME)]
"""A time of a JSON body, in seconds since 1970."""


class JobAction(BaseModel):
    """What to do to many jobs: those that match all the fields of the filter, one of which is there at least."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    status: Annotated[JobState | None, WithJsonSchema(_STATES)] = None
    pipeline: Annotated[str | None, Field(pattern=REFERENCE, description="NAME, or NAME@VERSION")] = None
    stage: Annotated[str | None, Field(pattern=NAME, description="where the job stands, as in lists")] = None
    error_code: Annotated[str | None, Field(pattern=NAME)] = None
    metadata: Annotated[
        dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
        Field(max_length=MOST_METADATA, description="the jobs have all of these, and may have more"),
    ] = {}
    created_after: Annotated[Time, Field(description="RFC 3339 with a zone, or unix seconds")] = None
    created_before: Annotated[Time, Field(description="the same")] = None
    tenant: Annotated[str | None, Field(pattern=TENANT, description="whose jobs, where a caller sees all")] = None
    cursor: Annotated[
        str | None, Field(pattern=f"^{JOB_ID.pattern}$", description="`next_cursor` of the answer before")
    ] = None
    limit: Annotated[int | None, Field(ge=1, le=1_000, description="how many jobs at most; default 1,000")] = None
    dry_run: Annotated[bool, Field(description="change nothing: count the jobs")] = False

    def filter(self, caller: Caller, states: Sequence[JobState], verb: str) -> JobFilter:
        """Return the filter for jobs in these ``states``, of which ``status`` is one. Raises InvalidRequest.

        Raises MissingScope for the tenant of others.
        """
        if self.status is not None and self.status not in states:
            raise InvalidRequest(f"a job that is {self.status} cannot be {verb}", field="status")
        given = self.model_dump(exclude=_NO_FILTERS, exclude_defaults=True)
        if not given:
            raise InvalidRequest("name at least one field that the jobs match, such as created_before", field="body")
        name, version = name_and_version(self.pipeline)
        return JobFilter(
            states=frozenset(states if self.status is None else [self.status]),
            pipeline=name,
            version=version,
            stage=self.stage,
            error_code=self.error_code,
            metadata=tuple(self.metadata.items()),
            created_after=self.created_after,
            created_before=self.created_before,
            tenant=tenant_of(caller, self.tenant),
        )


class JobRetries(JobAction):
    """Which ended jobs to retry, and from where."""

    from_stage: Annotated[
        str | None, Field(max_length=100, description="run this stage again, and all that follow it")
    ] = None
    version: Annotated[
        str | None, Field(pattern=VERSION, description="of their pipelines, on which they run; without it their own")
    ] = None


def body_of(kind: type[JobAction]) -> dict[str, Any]:
    """Return the declaration of a JSON body of this model for a route's ``openapi_extra``."""
    schema = kind.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def read_action(kind: type["JobAction"], body: bytes | bytearray) -> Any:
    """Return the model that a JSON body is. Raises InvalidRequest, which names the first field that is wrong.

    A key that is given twice is wrong, because what a filter leaves out is done to more jobs.
    """
    given = parse_body(body, len(body), len(body))
    try:
        return kind.model_validate_json(json.dumps(given))  # its strict types are those of JSON
    except ValidationError as error:
        raise refuse(error) from None


def name_and_version(reference: str | None) -> tuple[str | None, str | None]:
    """Return the name and the version of a pipeline that was named NAME or NAME@VERSION; None: not given."""
    if reference is None:
        return None, None
    name, _, version = reference.partition("@")
    return name, version or None


def tenant_of(caller: Caller, named: str | None) -> str | None:
    """Return the tenant whose jobs a caller asks for; None: all. Raises MissingScope for another one's than its own."""
    if named is None or named == caller.sees:
        return caller.sees
    if caller.sees is None:
        return named
    raise MissingScope("the jobs of another tenant are not shown", field="tenant")


def pairs_of(given: Sequence[str]) -> list[tuple[str, str]]:
    """Return the names and values of a query's ``metadata``. Raises InvalidRequest for one of another form."""
    if not all(_PAIR.fullmatch(each) for each in given):
        raise InvalidRequest("must be NAME=VALUE, of at most 64 and 512 characters", field="metadata")
    return [(name, value) for name, _, value in (each.partition("=") for each in given)]
