"""``set_drained``: drain a worker, or let it claim again."""

from omni_jobs.api.services import Services
from omni_jobs.database.clock import as_datetime
from omni_jobs.errors import NotFound
from omni_jobs.tenants.caller import Caller
from omni_jobs.views import WorkerDrainView


def set_drained(services: Services, caller: Caller, worker: str, *, drained: bool) -> WorkerDrainView:
    """Drain the worker of this id or slot, or let it claim again and ring its stage's workers; return how it stands.

    Doing it again changes nothing. Raises NotFound for a worker that is gone.
    """
    if not worker.isprintable():  # PostgreSQL's text refuses NUL characters and surrogates
        raise NotFound(f"there is no worker {worker!r:.80}", field="worker")
    found = (services.jobs.drain if drained else services.jobs.undrain)(worker, by=caller.actor)
    if not drained:
        versions = services.pipelines.versions(found.pipeline)
        services.relay.ring([each.queue(found.stage) for each in versions if found.stage in each.stages])
    drained_at = None if found.drained_at is None else as_datetime(found.drained_at)
    return WorkerDrainView.model_validate({**found._asdict(), "drained_at": drained_at})
