"""``ChildReadiness``: tells whether a child of the embedded stack serves."""

from contextlib import suppress

import httpx2

from omni_jobs.errors import DatabaseUnavailable
from omni_jobs.jobs import Jobs
from omni_jobs.stack.child import API, RESCUER, VALKEY, Child
from omni_jobs.stack.valkey import Valkey

API_LIMIT_S = 6.0


class ChildReadiness:
    """Asks the children of one embedded stack whether they serve, for the supervisor."""

    def __init__(self, valkey: Valkey, api_url: str, jobs: Jobs) -> None:
        self._valkey = valkey
        self._api_url = api_url
        self._jobs = jobs
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

    def _api_answers(self) -> bool:
        """Return True if the API answers and its database does; it starts without an S3 server, and tells its clients.

        This asks the database itself, because without a key the API does not say what it lacks.
        """
        with suppress(httpx2.HTTPError, DatabaseUnavailable):
            answer = httpx2.get(f"{self._api_url}/healthz", timeout=API_LIMIT_S, trust_env=False)
            self._jobs.workers()
            return answer.is_success
        return False

    def _is_registered(self, worker: Child) -> bool:
        """Return True if the worker has registered in the database, which it does once its model is loaded."""
        if worker.pid not in self._registered:
            with suppress(DatabaseUnavailable):  # busy: the next check may succeed
                self._registered.update(registered.pid for registered in self._jobs.workers())
        return worker.pid in self._registered
