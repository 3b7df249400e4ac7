"""Routes of the versions of pipelines: list them, drain one, and let one serve again."""

import time
from collections.abc import Mapping
from typing import Annotated, Final

from fastapi import APIRouter, Path

from omni_jobs.api.needs import Administrator
from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.database.clock import as_datetime
from omni_jobs.http.error_answers import errors
from omni_jobs.identity import PipelineId
from omni_jobs.jobs import KnownVersion, VersionWork
from omni_jobs.states import JobState
from omni_jobs.tenants.caller import Caller
from omni_jobs.views import PipelineVersionList, PipelineVersionView

router = APIRouter(prefix="/v1/pipelines", tags=["pipelines"])

SETTLED_S: Final = 10.0
"""From so long after its drain on, no server takes jobs for a version: each looks every second or two."""

Reference = Annotated[str, Path(description="NAME@VERSION")]


@router.get("/versions", responses=errors(403, 503))
def list_pipeline_versions(caller: Administrator, services: ServicesDep) -> PipelineVersionList:
    """List the versions of all pipelines, each with what is left of it.

    A version is listed from the first time that a server or a worker had its file.
    """
    services.versions.learn()
    work = services.jobs.version_work()
    return PipelineVersionList(versions=[_view(services, each, work) for each in services.jobs.known_versions()])


@router.post("/{reference}/drain", responses=errors(403, 404, 503))
def drain_pipeline_version(caller: Administrator, reference: Reference, services: ServicesDep) -> PipelineVersionView:
    """Let a version of a pipeline take no new jobs, within two seconds on every server. Its jobs go on.

    A request without a version means another one from then on, the newest that is not draining. Once
    `workers_may_go`, its workers have nothing left to do. Draining it again changes nothing.
    """
    return _set_draining(services, caller, reference, is_draining=True)


@router.post("/{reference}/serve", responses=errors(403, 404, 503))
def serve_pipeline_version(caller: Administrator, reference: Reference, services: ServicesDep) -> PipelineVersionView:
    """Let a draining version of a pipeline take new jobs again. Doing it again changes nothing."""
    return _set_draining(services, caller, reference, is_draining=False)


def _set_draining(services: Services, caller: Caller, reference: str, *, is_draining: bool) -> PipelineVersionView:
    services.versions.learn()  # its versions may not be known yet
    version = services.jobs.set_draining(reference, is_draining=is_draining, by=caller.actor)
    services.versions.learn()
    return _view(services, version, services.jobs.version_work())


def _view(services: Services, version: KnownVersion, work: Mapping[PipelineId, VersionWork]) -> PipelineVersionView:
    jobs, workers = work.get(version.pipeline, VersionWork({}, 0))
    default = services.pipelines.find(version.pipeline.name)
    has_settled = version.draining_at is not None and time.time() - version.draining_at >= SETTLED_S
    return PipelineVersionView(
        pipeline=version.pipeline.name,
        version=version.version,
        digest=version.pipeline.digest,
        state="serving" if version.draining_at is None else "draining",
        is_default=default is not None and default.reference == version.reference,
        is_here=services.pipelines.of(version.pipeline) is not None,
        first_seen_at=as_datetime(version.first_seen_at),
        draining_at=None if version.draining_at is None else as_datetime(version.draining_at),
        queued=jobs.get(JobState.QUEUED, 0),
        in_progress=jobs.get(JobState.IN_PROGRESS, 0),
        cancelling=jobs.get(JobState.CANCELLING, 0),
        workers=workers,
        workers_may_go=has_settled and not jobs,
    )
