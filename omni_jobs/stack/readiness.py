"""Whether the children of the embedded stack serve, and which of them do so no longer although their processes run."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2

from omni_jobs.database.database import Database
from omni_jobs.errors import DatabaseUnavailable
from omni_jobs.jobs import Jobs
from omni_jobs.stack.child import API, RESCUER, VALKEY, Child, ChildState
from omni_jobs.stack.sentinel import is_stopped
from omni_jobs.stack.valkey import Valkey

API_LIMIT_S = 6.0
CHECK_S = 10.0
PATIENCE = 3  # times the limit, for a worker, which watches itself and tells more, and for the rescuer's long rounds


@dataclass(eq=False, repr=False)
class ChildReadiness:
    """Asks the children of one embedded stack whether they serve, for the supervisor."""

    valkey: Valkey
    api_url: str
    database: Database
    rescuer_beat: Path  # the file that the rescuer touches after each round that went well

    def __post_init__(self) -> None:
        self._jobs = Jobs(self.database)
        self._round: int | None = None  # when the newest ended that was seen, by the file's time

    def serves(self, child: Child) -> bool:
        """Return True if this child, whose process runs, serves.

        Valkey and the API answer then, a worker has loaded its model, and a rescuer serves as soon as it runs.
        """
        if child.name == VALKEY:
            return self.valkey.answers()
        if child.name == API:
            return self._api_answers()
        with suppress(DatabaseUnavailable):  # busy: the next check may succeed
            return child.name == RESCUER or self._has_lease(child)
        return False

    def still_serves(self, child: Child) -> bool:
        """Return False if this child, which served, does so no longer.

        A worker has lost its lease then, and a rescuer has ended no round since this was asked before. Neither is to
        blame while the database takes no writes, unless somebody has stopped it: it may be what holds SQLite's lock.
        """
        if child.pid is not None and is_stopped(child.pid):
            return False
        if child.name == VALKEY:
            return self.valkey.answers()
        if child.name == API:
            return self._api_lives()
        try:
            if self._has_ended_a_round() if child.name == RESCUER else self._has_lease(child):
                return True
            self.database.check_writes()
        except DatabaseUnavailable:
            return True
        return False

    def _has_ended_a_round(self) -> bool:
        before = self._round
        with suppress(OSError):
            self._round = self.rescuer_beat.stat().st_mtime_ns
        return self._round != before

    def _has_lease(self, worker: Child) -> bool:
        """Return True if the worker has registered, which it does once its model is loaded, and renewed since."""
        return any(registered.pid == worker.pid for registered in self._jobs.workers())

    def _api_answers(self) -> bool:
        """Return True if the API answers and its database does; it starts without an S3 server, and tells its clients.

        This asks the database itself, because without a key the API does not say what it lacks.
        """
        with suppress(DatabaseUnavailable):
            self._jobs.workers()
            return self._api_lives()
        return False

    def _api_lives(self) -> bool:
        with suppress(httpx2.HTTPError):
            return httpx2.get(f"{self.api_url}/healthz", timeout=API_LIMIT_S, trust_env=False, verify=False).is_success
        return False


class ChildWatch:
    """Checks children from time to time. One that was stopped, or waits for ever, fails one check after another."""

    def __init__(self, children: Sequence[Child], still_serves: Callable[[Child], bool], limit_s: float) -> None:
        """``still_serves`` tells of a child that was ready whether it is. ``limit_s``: how long it may not be.

        Workers and the rescuer may for three times as long.
        """
        self.check_s = min(CHECK_S, limit_s / 3)  # the pause between two checks
        self._children = children
        self._still_serves = still_serves
        self._limit_s = limit_s
        self._failed_s: dict[int, float] = {}  # by process id
        self._checked_at = time.monotonic()

    @property
    def is_due(self) -> bool:
        """True once the pause since the last check has passed."""
        return time.monotonic() >= self._checked_at + self.check_s

    def hanging(self) -> list[tuple[Child, float]]:
        """Check all children that were ready; return those that hang, and for how many seconds.

        It blocks for some seconds if one does not answer. A long time since the last check does not count whole,
        because then this process was stopped itself, maybe with all others.
        """
        now = time.monotonic()
        passed_s = min(now - self._checked_at, 2 * self.check_s)
        self._checked_at = now
        found = []
        failed_s: dict[int, float] = {}
        for child in self._children:
            if child.state is not ChildState.READY or child.pid is None or self._still_serves(child):
                continue
            failed_s[child.pid] = self._failed_s.get(child.pid, 0.0) + passed_s
            if failed_s[child.pid] >= self._limit_s * (1 if child.name in (VALKEY, API) else PATIENCE):
                found.append((child, failed_s[child.pid]))
        self._failed_s = failed_s
        return found
