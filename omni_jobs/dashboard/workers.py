"""The page of workers: by stage, each with its host, its lease, what it has in flight and has done; drain, resume."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import Any, Final

from anyio.to_thread import run_sync
from fastapi import APIRouter, Response

from omni_jobs.api.worker_drains import set_drained
from omni_jobs.dashboard.fragments import Fragment
from omni_jobs.dashboard.page_route import PageRoute
from omni_jobs.dashboard.visit import Operates, Visit
from omni_jobs.http.process import short_switch_interval
from omni_jobs.jobs import paused_since
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.views import WorkerView

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_MOST: Final = 500
_WHOLE_FROM: Final = 10.0  # a minute; fewer have a decimal


@dataclass(frozen=True, slots=True)
class Crew:
    """The workers of a stage. ``kept``: the slots of each that are kept for high jobs, by the stage as it is here."""

    pipeline: str
    stage: str
    workers: Sequence[WorkerView]
    kept: int
    digest: str | None  # of the pipeline's file here; None: this server has none
    is_paused: bool

    @property
    def running(self) -> int:
        """The stage runs that they hold."""
        return sum(worker.running for worker in self.workers)

    @property
    def slots(self) -> int:
        """The stage runs that they can hold: drained ones no more than they do."""
        return sum(worker.slots if worker.drained_at is None else worker.running for worker in self.workers)


@router.get("/workers")
async def show_workers(visit: Operates) -> Response:
    """Show the workers."""
    return await visit.page("workers", "Workers", content=await _content(visit))


@router.get("/fragments/workers")
async def workers_content(visit: Operates) -> Response:
    """Return what of the page changes."""
    return visit.answer(await _content(visit))


async def _content(visit: Visit) -> Fragment:
    def read() -> Mapping[str, Any]:
        with short_switch_interval():
            workers = visit.services.jobs.workers()
            paused = visit.services.jobs.paused_stages()
        return {
            "now": datetime.now(UTC),
            "crews": crews_of(workers[:_MOST], visit.services.pipelines, paused),
            "count": len(workers),
            "others": max(0, len(workers) - _MOST),
            "lease_state": lease_state,
            "a_minute": a_minute,
            "hosts": len({worker.host for worker in workers}),
        }

    return await visit.fragment("workers", read)


@router.post("/workers/{worker_id}/drain")
async def drain_worker(visit: Operates, worker_id: str) -> Response:
    """Drain a worker: it goes on with what it runs, and claims nothing more."""
    await run_sync(partial(set_drained, visit.services, visit.caller, worker_id, drained=True))
    return visit.moved("/workers")


@router.post("/workers/{worker_id}/resume")
async def resume_worker(visit: Operates, worker_id: str) -> Response:
    """Let a worker claim again."""
    await run_sync(partial(set_drained, visit.services, visit.caller, worker_id, drained=False))
    return visit.moved("/workers")


def crews_of(
    workers: Sequence[WorkerView], pipelines: Pipelines, paused: Mapping[tuple[str, str], float]
) -> list[Crew]:
    """Return the workers by stage; they come sorted so, as ``Jobs.workers`` returns them."""
    crews = []
    for (pipeline, stage), its in groupby(workers, key=lambda each: (each.pipeline, each.stage)):
        served = pipelines.get(pipeline)
        config = None if served is None else served.stages.get(stage)
        kept = 0 if config is None else config.slots_for_high
        digest = None if served is None or pipelines.broken(pipeline) is not None else served.digest
        crew = list(its)
        held = all(paused_since(paused, pipeline, each.pipeline_version, stage) is not None for each in crew)
        crews.append(Crew(pipeline, stage, crew, kept, digest, held))
    return crews


def lease_state(worker: WorkerView, now: datetime) -> str:
    """Return how the lease of a worker stands: renewed, late (half of it is over without a renewal), or over."""
    left = (worker.lease_until - now).total_seconds()
    whole = (worker.lease_until - worker.renewed_at).total_seconds()
    return "over" if left <= 0 else "late" if left < whole / 2 else "renewed"


def a_minute(worker: WorkerView, now: datetime) -> str:
    """Return how many attempts a worker has completed a minute since its start, in the mean."""
    minutes = max(1.0, (now - worker.started_at).total_seconds()) / 60
    rate = worker.ended.get("completed", 0) / minutes
    return f"{rate:,.0f}" if rate >= _WHOLE_FROM else f"{rate:.1f}"
