"""``Services``: the parts of an API process that its routes work with, one of each."""

from functools import lru_cache, partial
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import Depends, Request

from omni_jobs.api.action_performer import ActionPerformer
from omni_jobs.api.bulk_answers import AllAnswers
from omni_jobs.api.readiness import ServerReadiness
from omni_jobs.api.request_notes import RequestNotes
from omni_jobs.api.served_versions import ServedVersions
from omni_jobs.broker.broker import Broker
from omni_jobs.broker.doorbell_metrics import DoorbellMetrics
from omni_jobs.broker.relay import Relay
from omni_jobs.database.database import Database
from omni_jobs.database.database_metrics import DatabaseMetrics
from omni_jobs.errors import OmniJobsError
from omni_jobs.http.metrics_server import MetricsServer
from omni_jobs.http.process import most_connections, short_switch_interval
from omni_jobs.http.tenant_threads import TenantThreads
from omni_jobs.http.transport import Transport
from omni_jobs.intake.admissions import Admissions
from omni_jobs.intake.intake import Intake
from omni_jobs.intake.intake_metrics import IntakeMetrics
from omni_jobs.intake.intake_observer import IntakeObserver
from omni_jobs.intake.lanes import Lanes
from omni_jobs.intake.media_fetches import MediaFetches
from omni_jobs.intake.submit_log import SubmitLog
from omni_jobs.jobs import JobFilter, Jobs, TransitionLog
from omni_jobs.media.wall import MediaWall
from omni_jobs.metrics.api_metrics import ApiMetrics
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.prompts.renderers import Renderers
from omni_jobs.settings import Settings
from omni_jobs.storage import open_store
from omni_jobs.tenants.callers import Callers
from omni_jobs.tracing.spans import open_spans
from omni_jobs.views import Counts, ErrorView, Page
from omni_jobs.watch.cached_value import CachedValue
from omni_jobs.watch.watch import Watch

_NEWEST_JOBS = 30  # in the status
_COUNTS_KEPT = 4096  # of as many tenants
_NEWEST_JOBS_KEPT = 256  # of as many tenants; those of one may have 2 MiB
_LIST_THREADS = 6
_LIST_THREADS_OF_TENANT = 2
_COUNT_THREADS = 2  # few, because the database may be long at each
_ACTION_THREADS = 4
_ARTIFACT_THREADS = 16  # a part is sent once the whole was read, which may take long
_ARTIFACT_THREADS_OF_TENANT = 4
_LEAST_WAITING = 16  # requests of a tenant for such threads, where there are few connections


class Services:
    """The parts of one API process that its routes work with, such as jobs, intake and broker. ``close`` them."""

    def __init__(self, settings: Settings, metrics: ApiMetrics | None = None) -> None:
        """Open all parts; connections are made when needed. Raises ConfigError for a wrong setting or pipeline file.

        ``metrics``: those that the server's parts change; None: new ones.
        """
        self.settings = settings
        self.metrics = metrics or ApiMetrics()
        self.transport = Transport(settings)
        configured = load_pipelines(settings.resolved_stage_configs)
        self.pipelines = configured.served(settings.pipelines)
        self.spans = open_spans(settings, "api")
        self.renderers = Renderers(settings)
        self.wall = MediaWall(settings)
        self.db = Database(settings.resolved_database_url, observers=[DatabaseMetrics(self.metrics)])
        self.callers = Callers(settings, self.db)
        are_known = self.callers.auth == "keys"
        self.jobs = Jobs(self.db, only_known_tenants=are_known, observers=[TransitionLog()])
        self.store = open_store(settings)
        # The queues of all pipelines, because jobs of a pipeline that is no longer served go on.
        self.broker = Broker(settings, configured)
        self.relay = Relay(self.broker, [DoorbellMetrics(self.metrics)])
        self.lanes = Lanes(self.wall.capacity)
        admissions = Admissions(settings, self.pipelines, self.renderers, self.wall, self.lanes)
        self.fetches = MediaFetches(settings, self.pipelines)
        heard_by = [*self._submits_heard_by(), IntakeMetrics(self.metrics, self.pipelines)]
        new_span = None if self.spans is None else self.spans.new
        parts = (self.fetches, admissions, self.jobs, self.store, self.relay)
        self.versions = ServedVersions(self.jobs, self.pipelines)
        self.intake = Intake(settings, *parts, observers=heard_by, new_span=new_span)
        connections = most_connections(settings)
        a_tenth = max(1, connections // 10)
        most = settings.max_waits if settings.max_waits is not None else connections // 2
        of_tenant = settings.max_waits_per_tenant
        most_of_tenant = a_tenth if of_tenant is None else of_tenant
        self.watch = Watch(self.jobs, most=most, most_per_tenant=most_of_tenant)
        self.metrics.count_watching(lambda: self.watch.places_taken)
        self.request_notes = RequestNotes(self.jobs)
        self.readiness = ServerReadiness(self.db, self.store, self.broker, self.pipelines, self.unavailable_reason)
        self.bulk_answers = AllAnswers(settings)
        most_waiting = max(_LEAST_WAITING, a_tenth)
        # For lists of jobs and for the status, so that large answers leave the other threads to small ones.
        self.list_threads = TenantThreads(_LIST_THREADS, _LIST_THREADS_OF_TENANT, most_waiting)
        self.action_threads = TenantThreads(_ACTION_THREADS, 1, most_waiting)  # of many jobs, a group at a time
        self.actions = ActionPerformer(self.jobs, self.intake, self.callers, self.action_threads)
        self.count_threads = TenantThreads(_COUNT_THREADS, 1)  # however many tenants count, none holds up a list
        self.artifact_threads = TenantThreads(_ARTIFACT_THREADS, _ARTIFACT_THREADS_OF_TENANT, most_waiting)
        # Of a tenant, None: of all. What was not read for long is forgotten.
        self.counts = lru_cache(_COUNTS_KEPT)(self._counts)
        self.newest_jobs = lru_cache(_NEWEST_JOBS_KEPT)(self._newest_jobs)
        self._metrics_server = MetricsServer(self.metrics, settings)
        self._metrics_server.start()

    def _counts(self, tenant: str | None) -> CachedValue[Counts]:
        return CachedValue(partial(self.jobs.counts, tenant), partial(self.count_threads.run, tenant))

    def _newest_jobs(self, tenant: str | None) -> CachedValue[Page]:
        def read() -> Page:
            with short_switch_interval():
                return self.jobs.list(JobFilter(tenant=tenant), limit=_NEWEST_JOBS, brief=True)

        return CachedValue(read, partial(self.list_threads.run, tenant))

    def _submits_heard_by(self) -> list[IntakeObserver]:
        if self.spans is None:
            return [SubmitLog()]
        from omni_jobs.intake.submit_spans import SubmitSpans

        return [SubmitLog(), SubmitSpans(self.spans)]

    def unavailable_reason(self, pipeline: Pipeline) -> ErrorView | None:
        """Return why all jobs of a pipeline are refused, such as a missing checkpoint; None if they are not."""
        try:
            self.pipelines.check_takes_jobs(pipeline)
            self.renderers.of(self.pipelines.named(pipeline.reference))
        except OmniJobsError as error:
            return ErrorView(**error.to_dict())
        return None

    async def close(self) -> None:
        """Write the jobs that wait and ring for them, then close all parts."""
        await self.actions.close()
        await self.intake.close()
        self.fetches.close()
        self.watch.release()
        self.readiness.close()
        await self.callers.close()
        if self.spans is not None:
            await run_sync(self.spans.close)
        parts = (self.request_notes, self.wall, self.relay, self.broker, self.db, self._metrics_server)
        for part in parts:
            await run_sync(part.close)


async def _services(request: Request) -> Services:  # async, because FastAPI calls other functions on a thread
    services: Services = request.app.state.services
    return services


ServicesDep = Annotated[Services, Depends(_services)]
