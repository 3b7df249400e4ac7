"""``asked_job``: a job as a caller may see it, who asks for it so."""

from omni_jobs.api.services import Services
from omni_jobs.http.path_prefix import below
from omni_jobs.jobs import Detail
from omni_jobs.tenants.caller import Caller, Scope
from omni_jobs.views import JobView


def asked_job(services: Services, caller: Caller, job_id: str) -> JobView:
    """Return a job as the caller may see it. Raises NotFound. Call it on a thread.

    What others' work makes of its wait, only operators see finely.
    """
    detail = Detail.FINE if caller.may(Scope.ADMIN) else Detail.COARSE
    return below(services.settings.root_path, services.jobs.get_asked(job_id, caller.sees, detail))
