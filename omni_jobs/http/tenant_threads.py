"""``TenantThreads``: threads for work that may take long, of which one tenant gets a part only."""

import sys
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from omni_jobs.errors import ServerBusy

T = TypeVar("T")


class TenantThreads:
    """Runs functions on threads. For one event loop.

    However long one tenant's functions take, threads are left for others, and so are the connections of requests that
    wait for a thread. None, who sees all tenants, is one of them, but may wait as often as it likes.
    """

    def __init__(self, most: int, most_per_tenant: int, most_waiting: int = sys.maxsize) -> None:
        """At most ``most`` functions run at once, ``most_per_tenant`` of one tenant; ``most_waiting`` of it wait."""
        self._all = CapacityLimiter(most)
        self._most_per_tenant = most_per_tenant
        self._most_waiting = most_waiting
        self._of_tenants: WeakValueDictionary[str | None, CapacityLimiter] = WeakValueDictionary()

    async def run(self, tenant: str | None, function: Callable[[], T], *, goes_on: bool = False) -> T:
        """Return what ``function`` returns. Raises what it raises, and ServerBusy if too many of the tenant wait.

        ``goes_on``: the function belongs to an answer that has begun, and waits in any case.
        """
        of_tenant = self._of_tenants.get(tenant)
        if of_tenant is None:
            of_tenant = self._of_tenants[tenant] = CapacityLimiter(self._most_per_tenant)
        if tenant is not None and not goes_on and of_tenant.statistics().tasks_waiting >= self._most_waiting:
            raise ServerBusy(f"{self._most_waiting} requests of tenant {tenant} wait for a thread")
        async with of_tenant:
            return await run_sync(function, limiter=self._all)
