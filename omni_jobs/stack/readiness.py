"""``ChildReadiness``: tells whether a child of the embedded stack serves."""

from contextlib import suppress
from pathlib import Path

import httpx2

from omni_jobs.database.database import Database
from omni_jobs.errors import DatabaseUnavailable
from omni_jobs.jobs import Jobs
from omni_jobs.stack.child import API, RESCUER, VALKEY, Child
from omni_jobs.stack.sentinel import is_stopped
from omni_jobs.stack.valkey import Valkey

API_LIMIT_S = 6.0


class ChildReadiness:
    """Asks the children of one embedded stack whether they serve, for the supervisor."""

    def __init__(self, valkey: Valkey, api_url: str, database: Database, round_file: Path) -> None:
        """``round_file`` is touched by the rescuer after each round that went well."""
        self._valkey = valkey
        self._api_url = api_url
        self._database = database
        self._jobs = Jobs(database)
        self._round_file = round_file
        self._round: int | None = None  # when the newest ended that was seen, by the file's time
        self._registered: set[int] = set()  # process ids of workers

    def serves(self, child: Child) -> bool:
        """Return True if this child, whose process runs, serves.

        Valkey and the API answer then, a worker has loaded its model, and a rescuer serves as soon as it runs.
        """
        if child.name == VALKEY:
            return self._valkey.answers()
        if child.name == API:
            return self._api_answers()
        return child.name == RESCUER or self._is_registered(child)

    def still_serves(self, child: Child) -> bool:
        """Return False if this child, which served, does so no longer.

        A worker has lost its lease then, and a rescuer has ended no round since this was asked before. Neither is to
        blame while the database takes no writes, unless somebody has stopped it: it may be what holds SQLite's lock.
        """
        if child.pid is not None and is_stopped(child.pid):
            return False
        if child.name == VALKEY:
            return self._valkey.answers()
        if child.name == API:
            return self._api_lives()
        try:
            if self._has_ended_a_round() if child.name == RESCUER else self._has_lease(child):
                return True
            self._database.check_writes()
        except DatabaseUnavailable:
            return True
        return False

    def _has_ended_a_round(self) -> bool:
        before = self._round
        with suppress(OSError):
            self._round = self._round_file.stat().st_mtime_ns
        return self._round != before

    def _has_lease(self, worker: Child) -> bool:
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
            return httpx2.get(f"{self._api_url}/healthz", timeout=API_LIMIT_S, trust_env=False, verify=False).is_success
        return False

    def _is_registered(self, worker: Child) -> bool:
        """Return True if the worker has registered in the database, which it does once its model is loaded."""
        if worker.pid not in self._registered:
            with suppress(DatabaseUnavailable):  # busy: the next check may succeed
                self._registered.update(registered.pid for registered in self._jobs.workers())
        return worker.pid in self._registered
