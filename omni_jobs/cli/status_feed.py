"""``StatusFeed``: a thread that asks the server how it does, again and again."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from omni_jobs.errors import OmniJobsError

if TYPE_CHECKING:
    from omni_jobs.client import Client
    from omni_jobs.views import Status

_SILENCE_S = 3.0  # in which a server answers that does well


class StatusFeed:
    """Keeps the newest status of a server. A thread asks for it, so that a server that hangs holds up nobody else."""

    def __init__(self, client: Client, every_s: float) -> None:
        """Ask for the first status, and keep asking, ``every_s`` seconds after each answer. Raises what it raises."""
        self._client = client
        self._every_s = every_s
        self._status = client.status()
        self._answered = time.monotonic()
        self._error: Exception | None = None  # of the last try
        threading.Thread(target=self._ask_for_ever, name="status", daemon=True).start()

    def _ask_for_ever(self) -> None:
        while True:
            time.sleep(self._every_s)
            try:
                self._status, self._error = self._client.status(), None
            except Exception as error:  # noqa: BLE001 — raised in the thread that looks
                self._error = error
                if not (isinstance(error, OmniJobsError) and error.retryable):
                    return
            else:
                self._answered = time.monotonic()

    def look(self) -> tuple[Status, str | None]:
        """Return the newest status, and why it is not of now; None if it is. Raises a final error of the server."""
        error = self._error
        if error is None:
            silence_s = time.monotonic() - self._answered - self._every_s
            return self._status, None if silence_s < _SILENCE_S else f"no answer for {silence_s:.0f} s"
        if isinstance(error, OmniJobsError) and error.retryable:
            return self._status, error.message
        raise error
