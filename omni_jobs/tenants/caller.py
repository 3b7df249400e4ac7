"""``Caller``: for whom a request is, what it may do, and which limits bind it."""

from dataclasses import dataclass, field
from enum import StrEnum

from omni_jobs.identity import DEFAULT_TENANT
from omni_jobs.tenants.tenant_limits import NO_LIMITS, Limits


class Scope(StrEnum):
    """What an API key allows. A route names the one that it needs."""

    SUBMIT = "submit"  # submit jobs, and cancel, retry and delete the tenant's
    READ = "read"  # jobs, events, artifacts, pipelines and the status
    FILES = "files"  # no route needs it yet
    WEBHOOKS = "webhooks"  # no route needs it yet
    PRIORITY = "priority"  # submit jobs of high priority
    ADMIN = "admin"  # everything of its tenant; and in the status also the load of all tenants and the workers


@dataclass(frozen=True, slots=True)
class Caller:
    """The party that sends a request.

    tenant    for whom its jobs run
    scopes    what it may do; ADMIN holds the others
    limits    those of its tenant
    sees_all  whether it sees the jobs of every tenant, because the server does not tell its callers apart
    operates  whether the status shows it the load of all tenants and the workers
    actor     who it is in the audit (``omni_jobs.database.audit.Act``)
    """

    tenant: str = DEFAULT_TENANT
    scopes: frozenset[Scope] = frozenset(Scope)
    limits: Limits = NO_LIMITS
    sees_all: bool = False
    operates: bool = False
    actor: str = field(default="anyone", compare=False)

    @property
    def sees(self) -> str | None:
        """The tenant whose jobs it sees; None: those of every tenant."""
        return None if self.sees_all else self.tenant

    def may(self, scope: Scope) -> bool:
        """Return whether it has this scope."""
        return scope in self.scopes or Scope.ADMIN in self.scopes


ANYONE = Caller()
"""Who sends a request where nobody is told apart."""
