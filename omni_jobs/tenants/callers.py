"""``Callers``: tells the callers of an API server apart, as the setting ``auth`` says, and bounds their requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from omni_jobs.database.database import Database
from omni_jobs.errors import InvalidRequest, Unauthenticated
from omni_jobs.settings import Settings
from omni_jobs.tenants.caller import Caller, Scope
from omni_jobs.tenants.key_store import ApiKeys, digest_of
from omni_jobs.tenants.limits import NO_LIMITS, Limits, check_name
from omni_jobs.tenants.lookups import Lookups
from omni_jobs.tenants.tenant_store import Tenants

if TYPE_CHECKING:
    from omni_jobs.tenants.request_rates import RequestRates


class Headers(Protocol):
    """The headers of a request."""

    def getlist(self, key: str) -> list[str]:
        """Return the values of all headers of this name."""


class Callers:
    """Finds out who sends a request. For one event loop; ``close`` it."""

    def __init__(self, settings: Settings, db: Database) -> None:
        """Raises ConfigError if the setting ``auth`` does not fit the others."""
        self.auth = settings.resolved_auth
        self._header = settings.tenant_header
        self._keys: Lookups[Caller] = Lookups(ApiKeys(db).find)
        tenants = Tenants(db)
        self._limits: Lookups[Limits] = Lookups(lambda name: (tenants.limits(name), float("inf")))
        self._settings = settings
        self._rates: RequestRates | None = None

    async def of(self, headers: Headers, cookie: str | None) -> Caller:
        """Return the caller of a request, from its headers, or from its cookie if it has no ``Authorization``.

        Raises Unauthenticated, InvalidRequest for a malformed header of the proxy, TooManyRequests,
        DatabaseUnavailable, and ServerBusy if too many unknown keys come.
        """
        if self.auth == "off":
            return _ANYBODY
        caller = await (self._of_key(headers, cookie) if self.auth == "keys" else self._of_proxy(headers))
        if caller.limits.requests_per_minute is not None:
            await self._check_rate(caller.tenant, caller.limits.requests_per_minute)
        return caller

    async def close(self) -> None:
        """Close the connections to the broker."""
        if self._rates is not None:
            await self._rates.close()

    async def _check_rate(self, tenant: str, per_minute: int) -> None:
        if self._rates is None:
            from omni_jobs.tenants.request_rates import RequestRates  # loads long, and few servers need it

            self._rates = RequestRates(self._settings)
        await self._rates.check(tenant, per_minute)

    async def _of_key(self, headers: Headers, cookie: str | None) -> Caller:
        values = headers.getlist("authorization")
        if not values and cookie is not None:
            values = [f"Bearer {cookie}"]
        scheme, _, key = values[0].partition(" ") if len(values) == 1 else ("", "", "")
        digest = digest_of(key) if scheme.lower() == "bearer" else None
        caller = None if digest is None else await self._keys.get(digest)
        if caller is None:
            raise Unauthenticated
        return caller

    async def _of_proxy(self, headers: Headers) -> Caller:
        values = headers.getlist(self._header or "")
        if not values:
            return _ANYBODY
        if len(values) > 1:
            raise InvalidRequest("must come once", field=self._header)
        tenant = check_name(values[0], field=self._header)
        return Caller(tenant, _OF_PROXY, await self._limits.get(tenant) or NO_LIMITS)


_ANYBODY = Caller(sees_all=True)
_OF_PROXY = frozenset(Scope) - {Scope.ADMIN}
