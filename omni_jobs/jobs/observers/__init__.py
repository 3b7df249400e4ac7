"""The observers of jobs' transitions: the base class, and those who hear of them, a file each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omni_jobs.jobs.observers.jobs_observer import JobsObserver
from omni_jobs.jobs.observers.transition_log import TransitionLog

if TYPE_CHECKING:
    from omni_jobs.tracing.provider import SentSpans


def transition_observers(spans: SentSpans | None) -> list[JobsObserver]:
    """Return the observers of a process that takes stage runs from lost workers; ``spans``: where tracing is on."""
    if spans is None:
        return [TransitionLog()]
    from omni_jobs.jobs.observers.lost_spans import LostSpans

    return [TransitionLog(), LostSpans(spans)]
