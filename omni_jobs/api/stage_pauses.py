"""``set_paused``: pause or resume a stage of a pipeline that this server serves."""

from omni_jobs.api.services import Services
from omni_jobs.database.clock import as_datetime
from omni_jobs.tenants.caller import Caller
from omni_jobs.views import StagePauseView


def set_paused(services: Services, caller: Caller, name: str, stage: str, *, paused: bool) -> StagePauseView:
    """Pause a stage of all versions of the pipeline of this ``name``, or resume it and ring; return its pause.

    Doing it again changes nothing. Raises NotFound for a pipeline or a stage that is not served.
    """
    versions = services.pipelines.versions(name)
    having = [each for each in versions if stage in each.stages]
    pipeline = having[0] if having else services.pipelines.named(name, field="name")
    change = services.jobs.pause if paused else services.jobs.resume
    change(pipeline.stage_id(stage), by=caller.actor)
    if not paused:
        services.relay.ring([each.queue(stage) for each in having])
    paused_at = services.jobs.paused_stages().get((name, stage))
    return StagePauseView(pipeline=name, stage=stage, paused_at=None if paused_at is None else as_datetime(paused_at))
