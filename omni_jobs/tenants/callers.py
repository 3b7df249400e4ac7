"""``Callers``: tells the callers of an API server apart, as the setting ``auth`` says, and bounds their requests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from omni_jobs.database.database import Database
from omni_jobs.errors import Conflict, InvalidRequest, OmniJobsError, Unauthenticated
from omni_jobs.settings import Settings
from omni_jobs.tenants.caller import Caller, Scope
from omni_jobs.tenants.key_store import ApiKeys, digest_of
from omni_jobs.tenants.lookup_cache import Lookups
from omni_jobs.tenants.sessions import Sessions, session_digest
from omni_jobs.tenants.tenant_limits import NO_LIMITS, Limits, check_name
from omni_jobs.tenants.tenant_store import Tenants

if TYPE_CHECKING:
    from omni_jobs.tenants.request_rates import RequestRates

_KNOWN_WITHIN_S: Final = 1.0


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
        self._key_store = ApiKeys(db)
        self._keys: Lookups[Caller] = Lookups(self._key_store.find_all)
        self._sessions = Sessions(db)
        self._browsers: Lookups[Caller] = Lookups(self._sessions.find_all)
        self._for_sessions = CapacityLimiter(1)  # a thread to begin and end them
        self._tenants = Tenants(db)
        self._limits: Lookups[Limits] = Lookups(
            lambda names: {name: (limits, float("inf")) for name, limits in self._tenants.limits_of(names).items()}
        )
        self._settings = settings
        self._rates: RequestRates | None = None

    async def of(self, headers: Headers, session_id: str | None, network: str) -> Caller:
        """Return the caller of a request that has come, which counts for its tenant's limit on requests.

        Raises TooManyRequests, and what ``look_up`` raises.
        """
        caller = await self.look_up(headers, session_id, network)
        if caller.limits.requests_per_minute is not None:
            await self._check_rate(caller.tenant, caller.limits.requests_per_minute)
        return caller

    async def knows(self, headers: Headers, network: str) -> bool:
        """Return whether a request comes from somebody who may be told what is wrong with the server.

        Where callers have keys, its key counts, or did when the database was last asked, if that does not answer now.
        """
        if self.auth != "keys":
            return True
        digest = _digest_of_key(headers)
        if digest is None:
            return False
        try:
            async with asyncio.timeout(_KNOWN_WITHIN_S):
                return await self._keys.get(digest, network) is not None
        except (OmniJobsError, TimeoutError):
            return self._keys.was_there(digest)

    async def look_up(self, headers: Headers, session_id: str | None, network: str) -> Caller:
        """Return the caller from a request's headers, or from its session if it has no ``Authorization``.

        Raises Unauthenticated, InvalidRequest for a malformed header of the proxy, DatabaseUnavailable, and ServerBusy
        if too many unknown keys come, in all or from the client's ``network``.
        """
        if self.auth == "off":
            return _ANYBODY
        if self.auth == "keys":
            return await self._of_key(headers, session_id, network)
        return await self._of_proxy(headers, network)

    async def of_actor(self, actor: str, tenant: str | None) -> Caller:
        """Return who asked for something earlier, with the rights that it has now.

        ``actor``: as the audit names it. ``tenant``: whose jobs it saw then; None: all. Raises Unauthenticated if it
        has a key no longer, or is another party here than then, and DatabaseUnavailable.
        """
        if self.auth == "off":
            return _ANYBODY
        if self.auth == "proxy":
            if tenant is None:
                return _ANYBODY
            limits = await run_sync(self._tenants.limits_of, [tenant])
            return Caller(tenant, _OF_PROXY, limits.get(tenant, NO_LIMITS), actor="proxy")
        caller = await run_sync(self._key_store.caller, actor)
        if caller is None or caller.sees != tenant:
            raise Unauthenticated("the key with which this was asked for is revoked, or has expired")
        return caller

    async def begin_session(self, headers: Headers) -> str:
        """Begin a session with the key of a request, and return its id, which only the browser may keep.

        Raises Conflict if the setting ``auth`` is not ``keys``, Unauthenticated and DatabaseUnavailable.
        """
        if self.auth != "keys":
            raise Conflict(f"there are no sessions here, because OMNI_JOBS_AUTH is {self.auth}: no caller has a key")
        digest = _digest_of_key(headers)
        if digest is None:
            raise Unauthenticated
        return await run_sync(self._sessions.begin, digest, limiter=self._for_sessions)

    async def end_session(self, session_id: str, network: str) -> None:
        """End a session, for all API servers within 5 s; do nothing if there is none. Raises DatabaseUnavailable."""
        digest = session_digest(session_id) if self.auth == "keys" else None
        # Looked up first, because strangers may look up few at once, and what they name need not be deleted.
        if digest is not None and await self._browsers.get(digest, network) is not None:
            await run_sync(self._sessions.end, digest, limiter=self._for_sessions)
            self._browsers.forget(digest)

    async def close(self) -> None:
        """Close the connections to the broker."""
        if self._rates is not None:
            await self._rates.close()

    async def _check_rate(self, tenant: str, per_minute: int) -> None:
        if self._rates is None:
            from omni_jobs.tenants.request_rates import RequestRates  # loads long, and few servers need it

            self._rates = RequestRates(self._settings)
        await self._rates.check(tenant, per_minute)

    async def _of_key(self, headers: Headers, session_id: str | None, network: str) -> Caller:
        if session_id is not None and not headers.getlist("authorization"):
            digest, found = session_digest(session_id), self._browsers
        else:
            digest, found = _digest_of_key(headers), self._keys
        caller = None if digest is None else await found.get(digest, network)
        if caller is None:
            raise Unauthenticated
        return caller

    async def _of_proxy(self, headers: Headers, network: str) -> Caller:
        values = headers.getlist(self._header or "")
        if not values:
            return _ANYBODY
        if len(values) > 1:
            raise InvalidRequest("must come once", field=self._header)
        tenant = check_name(values[0], field=self._header)
        return Caller(tenant, _OF_PROXY, await self._limits.get(tenant, network) or NO_LIMITS, actor="proxy")


def _digest_of_key(headers: Headers) -> str | None:
    """Return the digest of a request's key; None for none, and for several."""
    values = headers.getlist("authorization")
    scheme, _, key = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    return digest_of(key) if scheme.lower() == "bearer" else None


_ANYBODY = Caller(sees_all=True, operates=True)
_OF_PROXY = frozenset(Scope) - {Scope.ADMIN}
