"""Remote control of stage runs: Celery's commands ``active``, ``stats`` and ``query_task``, and those that are refused.

Celery's own commands know only the tasks that it executes. Stage runs are not among them, because an entry
for each would cost more than the rest of a small one. So these commands read the pool when they are called.
"""

import os
from typing import Any

from celery.worker.control import Panel, control_command, inspect_command

from omni_jobs.broker.doorbell import TASK

__all__: list[str] = []

_STATS = Panel.data["stats"]
_NO_REVOKE = "stage runs are not revoked: cancel their job, with omni-jobs cancel JOB or POST /v1/jobs/JOB/cancel"
_NO_POOL = "a worker runs as many stage runs at once as its slots: set slots in the stage config, and start it again"
_NO_QUEUE = "a worker serves one stage: start one of another stage, or pause this one, with omni-jobs stages pause"
_REFUSED = {
    "revoke": _NO_REVOKE,
    "revoke_by_stamped_headers": _NO_REVOKE,
    "terminate": _NO_REVOKE,
    "rate_limit": "stages have no rate limit: set their slots in the stage config",
    "time_limit": "a stage's time limit is time_limit_s in the stage config",
    "pool_grow": _NO_POOL,
    "pool_shrink": _NO_POOL,
    "pool_restart": _NO_POOL,
    "autoscale": _NO_POOL,
    "add_consumer": _NO_QUEUE,
    "cancel_consumer": _NO_QUEUE,
}
"""Celery's commands that would change nothing here, or what SQL or a stage config says: name → what to do instead."""


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


def _refuse(name: str, instead: str) -> None:
    """Let a command of Celery answer with an error and do nothing."""

    def refuse(state: Any, **_: Any) -> dict[str, str]:
        return {"error": instead}

    of_celery = Panel.meta[name]
    control_command(name=name, args=of_celery.args, signature=of_celery.signature, variadic=of_celery.variadic)(refuse)


for _name, _instead in _REFUSED.items():
    _refuse(_name, _instead)


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
