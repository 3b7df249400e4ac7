"""``set_paused``: pause or resume a stage of a pipeline that this server serves."""

from omni_jobs.api.services import Services
from omni_jobs.database.clock import as_datetime
from omni_jobs.jobs import paused_since
from omni_jobs.tenants.caller import Caller
from omni_jobs.views import StagePauseView


def set_paused(services: Services, caller: Caller, reference: str, stage: str, *, paused: bool) -> StagePauseView:
    """Pause a stage, or resume it and ring; return its pause: of all versions of NAME, or of NAME@VERSION alone.

    Doing it again changes nothing. A resume of NAME ends the pauses of its versions too; a version that is resumed
    stays paused while all are. Raises NotFound for a pipeline or a stage that is not served.
    """
    name, is_one, number = reference.partition("@")
    version = number if is_one else None
    if version is None:
        having = [each for each in services.pipelines.versions(name) if stage in each.stages]
    else:
        having = [services.pipelines.named(reference, field="name")]
        services.versions.learn()  # workers find the version's number there
    pipeline = having[0] if having else services.pipelines.named(name, field="name")
    change = services.jobs.pause if paused else services.jobs.resume
    change(pipeline.stage_id(stage), version=version, by=caller.actor)
    if not paused:
        services.relay.ring([each.queue(stage) for each in having])
    since = paused_since(services.jobs.paused_stages(), name, number, stage)
    paused_at = None if since is None else as_datetime(since)
    return StagePauseView(pipeline=name, version=version, stage=stage, paused_at=paused_at)
