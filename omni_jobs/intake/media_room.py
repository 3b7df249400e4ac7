"""``MediaRoom``: bounds the bytes of the media that a tenant's unfinished jobs have together.

SQL is asked with each submit that has media, of a tenant that has the limit; no other submit costs anything. Submits
that several API processes take at the same moment do not know of each other.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

from anyio.to_thread import run_sync

from omni_jobs.errors import TooMuchMedia

_RETRY_AFTER_S = 5


class MediaRoom:
    """Knows the bytes of media that this process is about to write, by tenant. For one event loop."""

    def __init__(self, count: Callable[[str], int]) -> None:
        """``count`` returns the bytes of the media of a tenant's unfinished jobs, as SQL has them."""
        self._count = count
        self._taken: Counter[str] = Counter()

    async def take(self, tenant: str, wanted: int, limit: int, until: ExitStack) -> TooMuchMedia | None:
        """Take room for so many bytes, and give it back as ``until`` closes; or return why there is none.

        Close ``until`` once the job is in SQL. Raises DatabaseUnavailable.
        """
        self._taken[tenant] += wanted  # first, because others may ask while SQL counts
        with ExitStack() as refused:
            refused.callback(self._give_back, tenant, wanted)
            used = await run_sync(self._count, tenant)
            if used + self._taken[tenant] <= limit:
                until.push(refused.pop_all())
                return None
        return TooMuchMedia(
            f"unfinished jobs of tenant {tenant} have {used} bytes of media, and may have {limit}: {wanted} more came",
            retry_after_s=_RETRY_AFTER_S,
        )

    def _give_back(self, tenant: str, count: int) -> None:
        self._taken[tenant] -= count
        self._taken += Counter()  # forget tenants without any
