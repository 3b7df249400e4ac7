"""``Services``: what the routes work with, one of each per process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Depends, Request

from omni_jobs.api.bulk_answers import AllAnswers
from omni_jobs.api.cached_value import CachedValue
from omni_jobs.api.job_waits import JobWaits
from omni_jobs.broker.broker import Broker
from omni_jobs.broker.hints import HintPublisher
from omni_jobs.broker.relay import Relay
from omni_jobs.database.database import Database
from omni_jobs.intake.admissions import Admissions
from omni_jobs.intake.intake import Intake
from omni_jobs.jobs import Counts, Jobs, Page
from omni_jobs.media.wall import MediaWall
from omni_jobs.pipelines.loader import Pipelines, load_pipelines
from omni_jobs.prompts import Renderers
from omni_jobs.settings import Settings
from omni_jobs.storage import ObjectStore, open_store

__all__ = ["Services", "ServicesDep"]

_RECENT = 30


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of one API process."""

    settings: Settings
    pipelines: Pipelines  # those that are served
    renderers: Renderers
    wall: MediaWall
    db: Database
    jobs: Jobs
    store: ObjectStore
    broker: Broker
    relay: Relay
    intake: Intake
    job_waits: JobWaits
    counts: CachedValue[Counts]  # counting a long backlog takes a second
    recent: CachedValue[Page]  # the newest jobs, without their results
    bulk_answers: AllAnswers
    lists: CapacityLimiter  # for lists of jobs and the status, so that large answers keep no thread from small ones

    @classmethod
    def open(cls, settings: Settings) -> Services:
        """Open everything but connections, which are made when needed. Raises ConfigError, StorageUnavailable."""
        known = load_pipelines(settings.resolved_stage_configs)
        pipelines = known.served(settings.pipelines)
        renderers = Renderers(settings)
        wall = MediaWall(settings)
        db = Database(settings.resolved_database_url)
        jobs = Jobs(db, announce_after_s=settings.announce_after_s)
        store = open_store(settings)
        broker = Broker(settings, known)  # jobs of a pipeline that is no longer served go on
        relay = Relay(HintPublisher(broker))
        relay.start()
        intake = Intake(settings, Admissions(settings, pipelines, renderers, wall), jobs, store, relay)
        intake.start()
        return cls(
            settings=settings,
            pipelines=pipelines,
            renderers=renderers,
            wall=wall,
            db=db,
            jobs=jobs,
            store=store,
            broker=broker,
            relay=relay,
            intake=intake,
            job_waits=JobWaits(jobs.unfinished),
            counts=CachedValue(jobs.counts),
            recent=CachedValue(partial(jobs.list, limit=_RECENT, brief=True)),
            bulk_answers=AllAnswers(settings),
            lists=CapacityLimiter(max(2, os.cpu_count() or 2)),
        )

    async def close(self) -> None:
        """Write and publish what waits, then close everything."""
        await self.intake.close()
        self.job_waits.release()
        for close in (self.wall.close, self.relay.close, self.broker.close, self.db.close):
            await run_sync(close)


async def _services(request: Request) -> Services:  # async: others are called on a thread of the pool
    services: Services = request.app.state.services
    return services


ServicesDep = Annotated[Services, Depends(_services)]
