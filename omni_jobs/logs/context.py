"""What a log line belongs to, as far as the code that writes it knows: its request, or its stage run."""

from contextvars import ContextVar
from typing import NamedTuple

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the HTTP request for which this code runs."""


class RunNames(NamedTuple):
    """A stage run's attempt in its worker."""

    job: str
    stage_run: int
    stage: str
    attempt: int
    worker: str
    trace: str | None = None


current_run: ContextVar[RunNames | None] = ContextVar("current_run", default=None)
"""The stage run for which this code runs, on the executor's event loop or on a thread that it waits for."""
