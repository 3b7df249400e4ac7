"""The observers of a worker's stage runs and of its ledger, a file each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omni_jobs.metrics.worker_metrics import WorkerMetrics
from omni_jobs.observers import Observers
from workers.execution.observers.hidden_texts import HiddenTexts
from workers.execution.observers.progress import ProgressReports
from workers.execution.observers.run_metrics import RunMetrics
from workers.execution.observers.run_observer import RunObserver
from workers.execution.observers.task_events import EventSink, TaskEvents

if TYPE_CHECKING:
    from workers.execution.ledger import Ledger


def run_observers(ledger: Ledger, metrics: WorkerMetrics, events: EventSink | None = None) -> Observers[RunObserver]:
    """Return the observers of a worker's stage runs: another one is a file beside this, and a line here.

    ``events`` takes Celery's events; None: there are none.
    """
    of_tasks = [] if events is None else [TaskEvents(events)]
    return Observers([HiddenTexts(), ProgressReports(ledger), RunMetrics(metrics), *of_tasks])
