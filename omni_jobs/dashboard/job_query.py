"""``JobQuery``: which jobs a page shows, as the address bar says it, in the fields of ``GET /v1/jobs``."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from omni_jobs.api.job_filters import JobAction, JobRetries, name_and_version, pairs_of, read_action, tenant_of
from omni_jobs.errors import InvalidRequest
from omni_jobs.http.request_parameters import NUMBER
from omni_jobs.jobs import JobFilter
from omni_jobs.tenants.caller import Caller

_FILTERS: Final = (
    "status", "pipeline", "stage", "error_code", "metadata", "created_after", "created_before", "tenant",
)  # fmt: skip
_CURSOR: Final = "cursor"
_LONGEST_QUERY: Final = 8_000  # characters
_TIMES: Final = ("created_after", "created_before")


@dataclass(frozen=True, slots=True)
class JobQuery:
    """The jobs that match these fields, older than the ``cursor`` if there is one.

    ``given`` has the texts as they were sent, and ``action`` is what they mean.
    """

    given: Sequence[tuple[str, str]]
    action: JobAction

    @classmethod
    def of(cls, query: QueryParams) -> Self:
        """Read the query of a request. An empty field counts as none, because forms send them so.

        Raises InvalidRequest, which names the field.
        """
        given = [(name, value) for name, value in query.multi_items() if value]
        if sum(len(name) + len(value) for name, value in given) > _LONGEST_QUERY:
            raise InvalidRequest(f"has more than {_LONGEST_QUERY} characters", field="query")
        for name, _ in given:
            if name not in (*_FILTERS, _CURSOR):
                known = ", ".join((*_FILTERS, _CURSOR))
                raise InvalidRequest(f"unknown in this query; known: {known}", field=f"{name:.64}")
        return cls(given, read_action(JobAction, json.dumps(_fields(given)).encode()))

    def filter(self, caller: Caller) -> JobFilter:
        """Return the filter for a list. Raises MissingScope for the tenant of others."""
        action = self.action
        name, version = name_and_version(action.pipeline)
        return JobFilter(
            states=None if action.status is None else frozenset([action.status]),
            pipeline=name,
            version=version,
            stage=action.stage,
            error_code=action.error_code,
            metadata=tuple(action.metadata.items()),
            created_after=action.created_after,
            created_before=action.created_before,
            tenant=tenant_of(caller, action.tenant),
        )

    def to_act(self, *, dry_run: bool = False, before: float | None = None) -> JobRetries:
        """Return what acts on all jobs that match, whatever the page shows of them; of those made ``before`` alone."""
        given = self.action.model_dump() | {"dry_run": dry_run, "cursor": None}
        if before is not None:
            given["created_before"] = min(before, given["created_before"] or before)
        return JobRetries(**given)

    @property
    def values(self) -> Mapping[str, str]:
        """The texts by field, for a form; "" for a field that is not given. ``labels`` has those of the metadata."""
        return {**dict.fromkeys(_FILTERS, ""), **dict(self.given)}

    @property
    def labels(self) -> Sequence[str]:
        """The metadata that jobs must have, each as NAME=VALUE."""
        return [value for name, value in self.given if name == "metadata"]

    @property
    def cursor(self) -> str | None:
        """The job before the first of this page; None: the page begins with the newest."""
        return self.action.cursor

    @property
    def is_filtered(self) -> bool:
        """Whether it names any field that jobs must match."""
        return any(name != _CURSOR for name, _ in self.given)

    def text(self, cursor: str | None = None) -> str:
        """Return the query as a URL has it, with the page that begins behind the ``cursor``; "" for all jobs."""
        fields = [(name, value) for name, value in self.given if name != _CURSOR]
        return urlencode(fields if cursor is None else [*fields, (_CURSOR, cursor)])


def _fields(given: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the fields of a query as the body of an action has them. Raises InvalidRequest."""
    fields: dict[str, Any] = {}
    pairs: list[str] = []
    for name, value in given:
        if name == "metadata":
            pairs.append(value)
        elif name in fields:
            raise InvalidRequest("given twice", field=name)
        else:
            fields[name] = float(value) if name in _TIMES and NUMBER.fullmatch(value) else value
    metadata: dict[str, str] = {}
    for name, value in pairs_of(pairs):
        if metadata.setdefault(name, value) != value:
            raise InvalidRequest(f"no job has two values of {name!r:.80}", field="metadata")
    return {**fields, "metadata": metadata} if metadata else fields
