"""``TenantThreads``: threads for work that may take long, of which one tenant gets a part only."""

from collections.abc import Callable
from typing import TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

T = TypeVar("T")


class TenantThreads:
    """Runs functions on threads. For one event loop.

    However long one tenant's functions take, threads are left for others. None, who sees all tenants, is one of them.
    """

    def __init__(self, most: int, most_per_tenant: int) -> None:
        """At most ``most`` functions run at once, and ``most_per_tenant`` of one tenant; further ones wait."""
        self._all = CapacityLimiter(most)
        self._most_per_tenant = most_per_tenant
        self._of_tenants: WeakValueDictionary[str | None, CapacityLimiter] = WeakValueDictionary()

    async def run(self, tenant: str | None, function: Callable[[], T]) -> T:
        """Return what ``function`` returns. Raises what it raises."""
        of_tenant = self._of_tenants.get(tenant)
        if of_tenant is None:
            of_tenant = self._of_tenants[tenant] = CapacityLimiter(self._most_per_tenant)
        async with of_tenant:
            return await run_sync(function, limiter=self._all)
