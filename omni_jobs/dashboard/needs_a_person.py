"""What of a server needs a person, as the overview says it: jobs, stages, the rescuer, the broker, keys."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple
from urllib.parse import quote

from omni_jobs.api.services import Services
from omni_jobs.dashboard.templates import plural, seconds_between, span
from omni_jobs.jobs import JobFilter
from omni_jobs.tenants.caller import Caller
from omni_jobs.tenants.key_store import ApiKeys
from omni_jobs.views import StageLoad, WorkerView

_NO_SAMPLE_S: Final = 30.0  # a rescuer samples the stages every ten seconds
_EXPIRES_WITHIN_S: Final = 7 * 86_400.0
_MOST_LINES: Final = 3  # of a kind; one more says how many others there are
_COUNTED: Final = 100  # quarantined jobs, and keys


class Need(NamedTuple):
    """Something that needs a person. ``path``: where to look on, below the server's root."""

    text: str
    path: str


def needs_of(
    services: Services,
    caller: Caller,
    now: datetime,
    workers: Sequence[WorkerView],
    standing: Sequence[StageLoad],
    *,
    broker_is_away: bool,
) -> list[Need]:
    """Return what needs a person, as far as the caller sees it.

    ``standing``: the stages that have work and no worker, or whose engine is down. Call it on a thread.
    """
    needs = _quarantined(services, caller)
    lines = [
        Need(
            f"{load.reference}.{load.stage}: {plural(load.queued, 'stage run')} queued, and "
            f"{'its engine is down' if load.down else 'no worker'}",
            "/stages",
        )
        for load in standing
    ]
    needs += _few(lines, "stage with work and no worker", "stages with work and no worker", "/stages")
    if caller.operates:
        needs += _rescuer(services, now, workers)
        if broker_is_away:
            needs.append(Need("the broker takes no doorbells, so workers find their work by polling alone", "/workers"))
        if services.callers.auth == "keys":
            needs += _expiring_keys(services, caller, now)
    return needs


def _few(lines: Sequence[Need], one: str, many: str, path: str) -> list[Need]:
    """Return the first lines, and one that says how many others there are."""
    others = len(lines) - _MOST_LINES
    if others <= 0:
        return list(lines)
    return [*lines[:_MOST_LINES], Need(plural(others, f"other {one}", f"other {many}"), path)]


def _quarantined(services: Services, caller: Caller) -> list[Need]:
    found = services.jobs.matching(JobFilter(error_code="quarantined", tenant=caller.sees), _COUNTED)
    if not found.ids:
        return []
    more = "more than " if found.next_cursor is not None else ""
    return [Need(f"{more}{plural(len(found.ids), 'quarantined job')}", "/quarantine")]


def _rescuer(services: Services, now: datetime, workers: Sequence[WorkerView]) -> list[Need]:
    """Return that no rescuer runs. One that never has may begin with the workers, and is missed a while after."""
    ago_s = services.jobs.sampled_s_ago()
    if ago_s is None:
        if not any(seconds_between(worker.started_at, now) > _NO_SAMPLE_S for worker in workers):
            return []
        since = "yet"
    elif ago_s > _NO_SAMPLE_S:
        since = f"for {span(ago_s)}"
    else:
        return []
    return [Need(f"no rescuer: nobody has sampled the stages {since}, so nobody frees lost work", "/workers")]


def _expiring_keys(services: Services, caller: Caller, now: datetime) -> list[Need]:
    """Return the keys that expire soon, of the tenants that the caller sees."""
    keys = ApiKeys(services.db).expiring(_EXPIRES_WITHIN_S, caller.sees, at_most=_COUNTED)
    lines = [
        Need(
            f"the key {key.id} of the tenant {key.tenant} expires in {span(seconds_between(now, key.expires_at))}",
            f"/tenants/{quote(key.tenant, safe='')}",
        )
        for key in keys
    ]
    return _few(lines, "key that expires within a week", "keys that expire within a week", "/tenants")
