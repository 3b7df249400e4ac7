"""Why a stage stands still, in the words of the pages."""

from collections.abc import Mapping
from typing import Final

from omni_jobs.views import StageLoad

NO_WORKER: Final = "no worker"
ENGINE_DOWN: Final = "engine down"
_LOADING: Final = "loading_model"
_DRAINED: Final = "its workers are drained"
_WORDS: Final = {
    "no_worker": "no worker has this pipeline's file",
    _LOADING: "its workers load the model",
    "quota": "a tenant is at its limit",
    "retry_backoff": "waits before another try",
}


def reason_of(load: StageLoad, reasons: Mapping[tuple[str, str, str], str]) -> str | None:
    """Return why the newest stage runs of a load wait; None: none does. ``reasons``: of ``Jobs.wait_reasons``."""
    for (pipeline, version, stage), reason in reasons.items():
        if (pipeline, stage) == (load.pipeline, load.stage) and load.version in (None, version):
            return reason
    return None


def trouble_of(load: StageLoad, reason: str | None, *, is_served: bool = True) -> str | None:
    """Return why a stage stands still, or part of it does; None: nothing does.

    ``reason``: why its newest stage runs wait.
    """
    if load.paused:
        return "paused"
    if load.queued and not load.workers and load.down:
        return ENGINE_DOWN
    if load.queued and not load.workers:
        return _WORDS[_LOADING] if reason == _LOADING else _DRAINED if load.drained else NO_WORKER
    if load.queued and reason in _WORDS:
        return _WORDS[reason]
    return None if is_served or not load.queued + load.running + load.pending else "not served here"
