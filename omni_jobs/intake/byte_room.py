"""``ByteRoom``: bounds how many bytes of one kind a tenant has, such as those of its unfinished jobs' media.

SQL is asked once for each group of submits of a tenant that has the limit; no other submit costs anything. Submits that
several API processes take at the same moment do not know of each other.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from anyio.to_thread import run_sync

from omni_jobs.errors import LimitReached


@dataclass(slots=True)
class BytesLeft:
    """What a tenant has of a kind, and may have. None: it has no limit."""

    used: int
    limit: int | None

    def holds(self, wanted: int) -> bool:
        """Return whether there is room for ``wanted`` bytes."""
        return self.limit is None or self.used + wanted <= self.limit


class ByteRoom:
    """Knows the bytes that this process is about to write, by tenant. For one event loop."""

    def __init__(self, count: Callable[[str], int], refuse: Callable[[str, BytesLeft, int], LimitReached]) -> None:
        """``count`` returns the bytes of a tenant, as SQL has them.

        ``refuse`` returns the error for a tenant, what it has, and the bytes that came.
        """
        self._count = count
        self._refuse = refuse
        self._taken: Counter[str] = Counter()

    async def look(self, tenant: str, limit: int | None) -> BytesLeft:
        """Return what a tenant has and may have. Raises DatabaseUnavailable.

        Let nobody else look for this tenant until ``take`` was called for all that is wanted.
        """
        if limit is None:
            return BytesLeft(0, None)
        taken = self._taken[tenant]  # read first, because SQL may have these soon, and must not have them never
        return BytesLeft(await run_sync(self._count, tenant) + taken, limit)

    def refusal(self, tenant: str, left: BytesLeft, wanted: int) -> LimitReached | None:
        """Return why a tenant may not have ``wanted`` bytes more; None if it may."""
        return None if left.holds(wanted) else self._refuse(tenant, left, wanted)

    def take(self, tenant: str, left: BytesLeft, wanted: int, until: ExitStack) -> None:
        """Take room for ``wanted`` bytes, and give it back as ``until`` closes. Close it once they are in SQL."""
        if left.limit is not None and wanted:
            left.used += wanted
            self._taken[tenant] += wanted
            until.callback(self._give_back, tenant, wanted)

    def _give_back(self, tenant: str, count: int) -> None:
        self._taken[tenant] -= count
        if not self._taken[tenant]:
            del self._taken[tenant]
