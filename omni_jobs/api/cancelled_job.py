"""``cancel`` and ``delete`` a job, also one that runs, for a client that has one call for each."""

from functools import partial
from typing import Final

from anyio.to_thread import run_sync
from fastapi import Request

from omni_jobs.api.services import Services
from omni_jobs.errors import Conflict, StillCancelling
from omni_jobs.tenants.caller import Caller

_ENDS_WITHIN_S: Final = 5.0  # a worker stops a stage run within a second or two


async def cancel(services: Services, caller: Caller, job_id: str, request: Request) -> None:
    """Cancel a job, and wait for its end, 5 s at the longest. One that has ended stays as it is. Raises NotFound."""
    state = await run_sync(partial(services.jobs.cancel, job_id, caller.sees, by=caller.actor))
    if not state.is_final:
        connection = request.scope["state"].get("connection")
        await services.watch.until_ended(job_id, _ENDS_WITHIN_S, caller.sees, connection)


async def delete(services: Services, caller: Caller, job_id: str, request: Request, field: str) -> None:
    """Cancel a job, and delete it with all its data.

    Raises NotFound, and StillCancelling where its worker has not stopped after 5 s; it names ``field``.
    """
    await cancel(services, caller, job_id, request)
    try:
        await run_sync(partial(services.jobs.delete, job_id, caller.sees, by=caller.actor))
    except Conflict:
        raise StillCancelling(field=field) from None
