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
    from omni_jobs.tracing.provider import SentSpans
    from workers.execution.ledger import Ledger


def run_observers(
    ledger: Ledger, metrics: WorkerMetrics, events: EventSink | None = None, spans: SentSpans | None = None
) -> Observers[RunObserver]:
    """Return the observers of a worker's stage runs: another one is a file beside this, and a line here.

    ``events`` takes Celery's events, ``spans`` the spans of attempts; None: there are none.
    """
    observers: list[RunObserver] = [HiddenTexts(), ProgressReports(ledger), RunMetrics(metrics)]
    if events is not None:
        observers.append(TaskEvents(events))
    if spans is not None:  # before HiddenTexts hears of the end: an error's message may quote a text
        from workers.execution.observers.run_spans import RunSpans

        observers.insert(0, RunSpans(spans, ledger.worker.worker_id))
    return Observers(observers)
