"""Drain the workers of a host, and wait until drained workers run nothing any more."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from omni_jobs.errors import Conflict, NotFound

if TYPE_CHECKING:
    from omni_jobs.client import Client
    from omni_jobs.views import WorkerDrainView, WorkerView

_POLL_S: Final = 0.5

_RENEWALS: Final = 2
"""How often a drained worker must have renewed its lease since its drain before it counts as one that claims nothing.

The answer to a renewal tells it that it is drained; when it sends the next, it has that answer, and no claim is open.
"""


def set_drained_on(client: Client, host: str, is_drained: bool) -> list[WorkerDrainView]:
    """Drain the serving workers of a host, or let them claim again; return how they stand.

    Raises NotFound if no worker serves there.
    """
    workers = client.status().workers
    found = [worker for worker in workers if worker.host == host]
    if not found:
        known = ", ".join(sorted({worker.host for worker in workers})) or "none"
        raise NotFound(f"no worker serves on host {host!r:.80}; hosts with workers: {known}", field="host")
    return [view for worker in found for view in _set_drained(client, worker, is_drained)]


def wait_until_empty(
    client: Client,
    drains: Sequence[WorkerDrainView],
    host: str | None,
    timeout: float | None,
    tell: Callable[[str], object],
) -> list[WorkerDrainView]:
    """Wait until each drained worker has ended, or runs nothing and claims nothing. Return all that were waited for.

    With ``host``, a worker that begins to serve there meanwhile is drained as well. ``tell`` gets a line whenever
    other numbers of stage runs are left. Raises TimeoutError after ``timeout`` seconds, and Conflict once somebody
    resumes one of the workers; the others stay drained.
    """
    began = time.monotonic()
    drained = {each.id: each for each in drains}
    renewals: dict[str, set[datetime]] = {}
    told: Mapping[str, int] | None = None
    while True:
        serving = client.status().workers
        for worker in serving:
            if worker.host == host and worker.id not in drained:
                drained |= {view.id: view for view in _set_drained(client, worker, True)}
        left = {}
        for worker in serving:
            if worker.id not in drained:
                continue
            seen = renewals.setdefault(worker.id, set())
            if worker.running or len(seen) < _RENEWALS:  # as of the look before, because the numbers are read first
                left[worker.slot] = worker.running
            drained_at = worker.drained_at or drained[worker.id].drained_at
            if drained_at is None or worker.renewed_at <= drained_at:  # perhaps of a look that is older than the drain
                continue
            if worker.drained_at is None:
                raise Conflict(f"worker {worker.slot} was resumed by somebody", field="worker")
            seen.add(worker.renewed_at)
        if not left:
            return list(drained.values())
        if left != told:
            tell(_line(left))
            told = left
        if timeout is not None and time.monotonic() - began >= timeout:
            raise TimeoutError(f"after {timeout:g} s {_line(left)}; the workers stay drained")
        time.sleep(_POLL_S)


def _set_drained(client: Client, worker: WorkerView, is_drained: bool) -> list[WorkerDrainView]:
    try:
        return [client.set_drained(worker.id, is_drained)]
    except NotFound:  # it has ended
        return []


def _line(left: Mapping[str, int]) -> str:
    running = {slot: count for slot, count in left.items() if count}
    if not running:
        return f"{len(left)} to learn that they are drained"
    listed = ", ".join(f"{slot}: {count}" for slot, count in sorted(running.items()))
    return f"{sum(running.values())} stage runs left ({listed})"
