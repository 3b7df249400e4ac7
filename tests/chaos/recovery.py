"""Recovery: how long the work of a lost worker waits, by SQL alone.

Until it is freed: taken from the worker, to be claimed by any. And until it runs again, or
has ended, which includes its turn behind a backlog and the start of workers.
"""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Engine, bindparam, exc, text

from tests.chaos.processes import Supervised

__all__ = ["Held", "Recoveries", "Recovery", "percentile"]

LOOK_EVERY_S = 0.2

_HELD = text(
    "SELECT s.id, s.attempt FROM stage_runs s JOIN workers w ON w.id = s.owner"
    " WHERE s.state = 'running' AND w.pid = :pid"
)
_LOOK = text("SELECT id, attempt, state, started_at, finished_at FROM stage_runs WHERE id IN :ids").bindparams(
    bindparam("ids", expanding=True)
)


@dataclass(frozen=True)
class Held:
    """A stage run that a worker held when the fault struck."""

    stage_run_id: int
    attempt: int


@dataclass(frozen=True)
class Recovery:
    """One stage run: lost at, and again running (or ended) so many seconds later."""

    kind: str
    stage_run_id: int
    lost_at: float
    seconds: float
    freed_s: float  # at most this: looked for every LOOK_EVERY_S
    since_start_s: float | None  # until it was freed, counted from the start of the process that replaced the lost one


@dataclass
class _Followed:
    kind: str
    held: Held
    lost_at: float
    successor: Supervised | None
    freed_at: float | None = None


class Recoveries(threading.Thread):
    """Follows what was lost until it is recovered."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(name="recoveries", daemon=True)
        self.found: list[Recovery] = []
        self.lost: Counter[str] = Counter()  # stage runs held when a fault struck, by its kind
        self._engine = engine
        self._followed: list[_Followed] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def held_by(self, pid: int) -> list[Held]:
        """What the worker with this process holds; nothing when the database does not answer."""
        try:
            with self._engine.connect() as connection:
                return [Held(row.id, row.attempt) for row in connection.execute(_HELD, {"pid": pid})]
        except exc.DBAPIError:
            return []

    def follow(self, kind: str, held: Sequence[Held], lost_at: float, successor: Supervised | None = None) -> None:
        with self._lock:
            self.lost[kind] += len(held)
            self._followed += [_Followed(kind, each, lost_at, successor) for each in held]

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def run(self) -> None:
        while not self._stopping.wait(LOOK_EVERY_S):
            with self._lock:
                followed = list(self._followed)
            if followed:
                self._look(followed)

    def _look(self, followed: Sequence[_Followed]) -> None:
        try:
            with self._engine.connect() as connection:
                ids = sorted({each.held.stage_run_id for each in followed})
                rows = {row.id: row for row in connection.execute(_LOOK, {"ids": ids})}
        except exc.DBAPIError:
            return
        for each in followed:
            row = rows.get(each.held.stage_run_id)
            if row is None:  # deleted
                self._forget(each)
            elif row.state == "queued" and row.attempt == each.held.attempt:
                each.freed_at = each.freed_at or time.time()
            elif row.attempt > each.held.attempt and row.started_at is not None:
                self._recovered(each, row.started_at)
            elif row.finished_at is not None:
                if row.finished_at > each.lost_at and row.state != "succeeded":
                    self._recovered(each, row.finished_at)
                else:  # it was done just before, or by the worker that was only stopped
                    self._forget(each)

    def _recovered(self, each: _Followed, at: float) -> None:
        self._forget(each)
        if time.time() - at > 60 and at < each.lost_at:
            return
        successor = each.successor
        started = successor.started_at if successor is not None and successor.started_at > each.lost_at else None
        freed_at = min(at, each.freed_at or at)
        since = freed_at - started if started is not None and freed_at > started else None
        self.found.append(
            Recovery(
                kind=each.kind,
                stage_run_id=each.held.stage_run_id,
                lost_at=each.lost_at,
                seconds=max(0.0, at - each.lost_at),
                freed_s=max(0.0, freed_at - each.lost_at),
                since_start_s=since,
            )
        )

    def _forget(self, each: _Followed) -> None:
        with self._lock:
            self._followed.remove(each)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The nearest-rank percentile, rounded to milliseconds; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)
