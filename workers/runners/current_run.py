"""``CURRENT_RUN``: for which stage run a task works, so that a runner can tell which ones its engine computes."""

from contextvars import ContextVar

CURRENT_RUN: ContextVar[int] = ContextVar("current_run", default=0)
"""The id of the stage run, which the executor sets and which tasks that a run starts inherit; 0 outside a worker."""
