"""What of a server needs a person, as the overview says it: quarantined jobs, keys that expire, no rescuer."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from omni_jobs.api.services import Services
from omni_jobs.dashboard.templates import plural, span
from omni_jobs.jobs import JobFilter, StageSample
from omni_jobs.tenants.caller import Caller
from omni_jobs.tenants.key_store import ApiKeys
from omni_jobs.views import WorkerView

SAMPLED_S: Final = 120.0
"""How long a rescuer may take to sample the stages: it does so every ten seconds."""

_EXPIRES_SOON: Final = timedelta(days=7)
_COUNTED: Final = 100  # quarantined jobs


class Need(NamedTuple):
    """Something that needs a person. ``path``: where to look on, below the server's root; None: nowhere here."""

    text: str
    path: str | None = None


def needs_of(
    services: Services, caller: Caller, now: datetime, workers: Sequence[WorkerView], samples: Sequence[StageSample]
) -> list[Need]:
    """Return what needs a person, as far as the caller sees it.

    ``samples`` are those of the last ``SAMPLED_S``. Call it on a thread.
    """
    needs = []
    found = services.jobs.matching(JobFilter(error_code="quarantined", tenant=caller.sees), _COUNTED)
    if found.ids:
        more = "more than " if found.next_cursor is not None else ""
        needs.append(Need(f"{more}{plural(len(found.ids), 'quarantined job')}", "/quarantine"))
    if caller.operates:
        has_long_worked = any((now - worker.started_at).total_seconds() > SAMPLED_S for worker in workers)
        if has_long_worked and not samples:
            needs.append(Need("no rescuer: nobody has sampled the stages for two minutes, so nobody frees lost work"))
        if services.callers.auth == "keys":
            needs += _expiring_keys(services, caller, now)
    return needs


def _expiring_keys(services: Services, caller: Caller, now: datetime) -> list[Need]:
    needs = []
    for key in ApiKeys(services.db).all(caller.sees):
        if key.revoked_at is None and key.expires_at is not None and now < key.expires_at <= now + _EXPIRES_SOON:
            left = span((key.expires_at - now).total_seconds())
            needs.append(
                Need(f"the key {key.id} of the tenant {key.tenant} expires in {left}", f"/tenants/{key.tenant}")
            )
    return needs
