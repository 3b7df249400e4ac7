"""Remote control of stage runs: Celery's commands ``active``, ``stats``, ``query_task``, ``revoke``, ``terminate``.

Celery's own commands know only the tasks that it executes. Stage runs are not among them, because an entry
for each would cost more than the rest of a small one. So these commands read the pool when they are called.
"""

import os
from typing import Any

from celery.worker.control import Panel, control_command, inspect_command

from omni_jobs.broker.doorbell import TASK

__all__: list[str] = []

_STATS = Panel.data["stats"]
_NO_REVOKE = "stage runs are not revoked: cancel their job, with omni-jobs cancel JOB or DELETE /v1/jobs/JOB"


@inspect_command(alias="dump_active")  # type: ignore[untyped-decorator]
def active(state: Any, safe: bool = False, **_: Any) -> list[dict[str, Any]]:
    """Return the stage runs in flight on this worker, each with the fields of a Celery request."""
    return _active(state)


@inspect_command()  # type: ignore[untyped-decorator]
def stats(state: Any, **_: Any) -> dict[str, Any]:
    """Return Celery's statistics of this worker, with ``total``: {task: the number of attempts that ended here}."""
    info: dict[str, Any] = _STATS(state)
    info["total"] = {TASK: state.consumer.pool.executor.ended}
    return info


@inspect_command(variadic="ids", signature="[id1 [id2 [... [idN]]]]")  # type: ignore[untyped-decorator]
def query_task(state: Any, ids: Any, **_: Any) -> dict[str, Any]:
    """Return {id: ["active", run]} of the stage runs in flight here that have these ids; runs as ``active`` says."""
    wanted = {str(given) for given in (ids if isinstance(ids, list | tuple) else [ids])}
    return {run["id"]: ["active", run] for run in _active(state) if run["id"] in wanted}


@control_command(variadic="task_id", signature="[id1 [id2 [... [idN]]]]")  # type: ignore[untyped-decorator]
def revoke(state: Any, task_id: Any, **_: Any) -> dict[str, str]:
    """Answer with an error and do nothing, because users cancel a whole job, never a stage run."""
    return {"error": _NO_REVOKE}


@control_command(  # type: ignore[untyped-decorator]
    variadic="task_id", args=[("signal", str)], signature="<signal> [id1 [id2 [... [idN]]]]"
)
def terminate(state: Any, signal: Any, task_id: Any, **_: Any) -> dict[str, str]:
    """Answer with an error and do nothing, because users cancel a whole job, never a stage run."""
    return {"error": _NO_REVOKE}


def _active(state: Any) -> list[dict[str, Any]]:
    """Return the stage runs in flight, each with the fields of a Celery request and its own as ``kwargs``."""
    fields = ("stage_run_id", "job_id", "pipeline", "stage", "attempt")
    return [
        {
            "id": str(claim.stage_run_id),
            "name": TASK,
            "args": [],
            "kwargs": {**{name: getattr(claim, name) for name in fields}, "started_at": claimed_at},
            "type": TASK,
            "hostname": state.hostname,
            "time_start": claimed_at,
            "acknowledged": True,
            "delivery_info": {"routing_key": f"{claim.pipeline}.{claim.stage}"},
            "worker_pid": os.getpid(),
        }
        for claim, claimed_at in state.consumer.pool.executor.claims_in_flight()
    ]
