"""``Fragments``: the fragments of pages that change, each rendered once a second at most for all who look at it."""

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final

from omni_jobs.watch.cached_value import CachedValue

POLLED_S: Final = 1.8
"""How long a fragment is kept for which pages ask every two seconds: one page alone always gets a new one."""
_KEPT_S: Final = 1.0
_MOST_KEPT_S: Final = 4.0  # however long it takes on a busy machine, because people wait for what they see
_MOST: Final = 256  # a page of jobs has some 100 kB


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment of a page, rendered. ``etag`` is the same for the same HTML."""

    html: str
    etag: str

    @classmethod
    def of(cls, html: str) -> "Fragment":
        """Make a fragment of its HTML."""
        return cls(html, f'"{hashlib.sha256(html.encode("utf-8", "replace")).hexdigest()[:32]}"')

    def __html__(self) -> str:
        """Return its HTML, as a template takes it that is not to make text of it."""
        return self.html


class Fragments:
    """The fragments that one server has rendered. For one event loop."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str | None, Hashable], CachedValue[Fragment]] = OrderedDict()

    async def get(
        self,
        tenant: str | None,
        name: Hashable,
        render: Callable[[], str],
        run: Callable[[Callable[[], Any]], Awaitable[Any]],
        kept_s: float | None = None,
    ) -> Fragment:
        """Return the fragment of this ``name`` for whoever sees what ``tenant`` does; None sees all.

        ``render`` makes its HTML, and ``run`` calls a function on a thread. It is kept for ``kept_s`` (None: a
        second), and longer if it took long. Raises what they raise, and keeps no error.
        """
        key = (tenant, name)
        if key not in self._kept:
            least_kept_s = _KEPT_S if kept_s is None else kept_s
            most_kept_s = max(least_kept_s, _MOST_KEPT_S)
            self._kept[key] = CachedValue(
                lambda: Fragment.of(render()), run, least_kept_s=least_kept_s, most_kept_s=most_kept_s
            )
            if len(self._kept) > _MOST:
                self._kept.popitem(last=False)
        kept = self._kept[key]
        self._kept.move_to_end(key)
        try:
            return await kept.get()
        except Exception:
            if self._kept.get(key) is kept:  # the next one to look renders it by its own request
                del self._kept[key]
            raise

    def forget(self, tenant: str | None) -> None:
        """Forget what a tenant sees, and who sees all, because the tenant has changed something."""
        for key in [key for key in self._kept if tenant is None or key[0] in (tenant, None)]:
            del self._kept[key]
