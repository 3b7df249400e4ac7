"""Why a stage stands still, in the words of the pages."""

from collections.abc import Mapping
from typing import Final

from omni_jobs.api.services import Services
from omni_jobs.jobs import JobFilter
from omni_jobs.views import StageLoad

NO_WORKER: Final = "no worker"
_SEEN: Final = 60  # of the newest jobs
_LOADING: Final = "loading_model"
_WORDS: Final = {
    "no_worker": "no worker has this pipeline's file",
    _LOADING: "its workers load the model",
    "quota": "a tenant is at its limit",
    "retry_backoff": "waits before another try",
}


def wait_reasons(services: Services, tenant: str | None) -> Mapping[tuple[str, str], str]:
    """Return why the newest jobs of a tenant wait, by pipeline and stage, as in ``WaitingView``. None: those of all.

    Call it on a thread.
    """
    newest = services.jobs.list(JobFilter(tenant=tenant), limit=_SEEN, brief=True).jobs
    return {(job.pipeline, job.waiting.stage): job.waiting.reason for job in newest if job.waiting is not None}


def trouble_of(load: StageLoad, reason: str | None, *, is_served: bool = True) -> str | None:
    """Return why a stage stands still, or part of it does; None: nothing does.

    ``reason``: that of ``wait_reasons``.
    """
    if load.paused:
        return "paused"
    if load.queued and not load.workers:
        return _WORDS[_LOADING] if reason == _LOADING else NO_WORKER
    if load.queued and reason in _WORDS:
        return _WORDS[reason]
    return None if is_served or not load.queued + load.running + load.pending else "not served here"
