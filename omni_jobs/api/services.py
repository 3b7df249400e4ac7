"""What the routes work with: one of each per process, opened with the app."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from anyio import CapacityLimiter
from fastapi import Depends, Request

from omni_jobs.api.bulk_answers import AllAnswers
from omni_jobs.api.job_waits import Ends
from omni_jobs.api.sampled import Sampled
from omni_jobs.broker.broker import Broker
from omni_jobs.broker.hints import HintPublisher
from omni_jobs.broker.relay import Relay
from omni_jobs.database.database import Database
from omni_jobs.intake.backlog import Backlog
from omni_jobs.intake.group_commit import Submitter
from omni_jobs.intake.renderer_loads import RendererLoads
from omni_jobs.jobs import Counts, Jobs, Page
from omni_jobs.media.wall import MediaWall
from omni_jobs.pipelines.loader import Pipelines, load_pipelines
from omni_jobs.prompts import Renderers
from omni_jobs.settings import Settings
from omni_jobs.storage import ObjectStore, open_store

__all__ = ["Services", "ServicesDep"]

logger = logging.getLogger(__name__)

_RECENT = 30


@dataclass(frozen=True, slots=True)
class Services:
    """The server's parts; all safe for threads."""

    settings: Settings
    pipelines: Pipelines  # those that are served
    renderers: Renderers
    renderer_loads: RendererLoads
    db: Database
    jobs: Jobs
    store: ObjectStore
    broker: Broker
    relay: Relay
    submitter: Submitter
    backlog: Backlog
    ends: Ends
    counts: Sampled[Counts]  # of a long backlog it takes a second to make
    recent: Sampled[Page]  # the newest jobs, without their results
    wall: MediaWall
    small_admissions: CapacityLimiter  # these wait for nothing that is large, or decoded
    # One at a time of each, because they hold the interpreter's lock: two would take as long together, and whatever
    # is small waits for its turn behind each.
    admissions: CapacityLimiter  # of large bodies
    bulks: CapacityLimiter  # of groups of a bulk's lines, those with media left out
    media_admissions: CapacityLimiter  # those that wait for a decoder: no text waits behind them
    bulk_answers: AllAnswers
    lists: CapacityLimiter  # of jobs, and the status: large answers, which keep no thread from small ones

    @classmethod
    def open(cls, settings: Settings) -> Services:
        """Connects to nothing yet but the local object directory. Raises ConfigError, StorageUnavailable."""
        known = load_pipelines(settings.resolved_stage_configs)
        pipelines = known.served(settings.pipelines)
        db = Database(settings.resolved_database_url)
        broker = Broker(settings, known)  # jobs of a pipeline that is no longer served go on
        relay = Relay(HintPublisher(broker))
        relay.start()
        jobs = Jobs(db, announce_after_s=settings.announce_after_s)
        submitter = Submitter(jobs.submit_all, relay.send)
        submitter.start()
        wall = MediaWall(settings)
        renderers = Renderers(settings)
        return cls(
            settings=settings,
            pipelines=pipelines,
            renderers=renderers,
            renderer_loads=RendererLoads(renderers, pipelines),
            db=db,
            jobs=jobs,
            store=open_store(settings),
            broker=broker,
            relay=relay,
            submitter=submitter,
            backlog=Backlog(
                jobs.backlog,
                per_pipeline=settings.max_queued_jobs,
                per_tenant=settings.max_queued_jobs_per_tenant,
            ),
            ends=Ends(jobs.unfinished),
            counts=Sampled(jobs.counts),
            recent=Sampled(partial(jobs.list, limit=_RECENT, brief=True)),
            wall=wall,
            small_admissions=CapacityLimiter(max(2, os.cpu_count() or 2)),
            admissions=CapacityLimiter(1),
            bulks=CapacityLimiter(1),
            media_admissions=CapacityLimiter(wall.capacity),
            bulk_answers=AllAnswers(settings),
            lists=CapacityLimiter(max(2, os.cpu_count() or 2)),
        )

    def close(self) -> None:
        """Submit and publish what waits, then let go of everything."""
        self.ends.close()
        self.wall.close()
        self.submitter.close()
        self.relay.close()
        self.broker.close()
        self.backlog.close()
        self.db.close()


async def _services(request: Request) -> Services:  # async: others are called on a thread of the pool
    services: Services = request.app.state.services
    return services


ServicesDep = Annotated[Services, Depends(_services)]
