"""Remote control of stage runs: Celery's commands that mean something else here, and those that are refused.

Celery's own commands know only the tasks that it executes. Stage runs are not among them, because an entry
for each would cost more than the rest of a small one. So ``active``, ``stats`` and ``query_task`` read the pool when
they are called. ``enable_events``, ``disable_events`` and ``heartbeat`` say what became of them: Celery's own tell of
success also where the worker sends no events at all.
"""

import os
from typing import Any

from celery.utils.sysinfo import load_average
from celery.worker.control import Panel, control_command, inspect_command
from celery.worker.state import SOFTWARE_INFO

from omni_jobs.broker.doorbell import TASK
from workers.consumer import kombu_hooks
from workers.execution.observers.task_events import SHOWN_FIELDS

__all__: list[str] = []

_STATS = Panel.data["stats"]
_NO_REVOKE = "stage runs are not revoked: cancel their job, with omni-jobs cancel JOB or POST /v1/jobs/JOB/cancel"
_NO_POOL = "a worker runs as many stage runs at once as its slots: set slots in the stage config, and start it again"
_NO_EVENTS = "events of stage runs are off: OMNI_JOBS_TASK_EVENTS is off where this worker was started"
_NO_HEARTBEAT = "this worker sends no events: it was started with --without-heartbeat and --without-gossip"
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
    "election": "workers elect nobody: each claims its stage runs in SQL",
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


@control_command()  # type: ignore[untyped-decorator]
def enable_events(state: Any, **_: Any) -> dict[str, str]:
    """Send events of stage runs from now on, unless they are off by a setting."""
    dispatcher = state.consumer.event_dispatcher
    if state.consumer.pool.events is None:
        return {"error": _NO_EVENTS}
    if kombu_hooks.sends_task_events(dispatcher) and dispatcher.enabled:
        return {"ok": "task events already enabled"}
    if dispatcher.groups:
        dispatcher.groups.add("task")
    if not dispatcher.enabled:
        dispatcher.enable()
    return {"ok": "task events enabled"}


@control_command()  # type: ignore[untyped-decorator]
def disable_events(state: Any, **_: Any) -> dict[str, str]:
    """Send no events of stage runs from now on. Those of the worker go on."""
    dispatcher = state.consumer.event_dispatcher
    if not kombu_hooks.sends_task_events(dispatcher):
        return {"ok": "task events already disabled"}
    dispatcher.groups = {"worker"}
    return {"ok": "task events disabled"}


@control_command()  # type: ignore[untyped-decorator]
def heartbeat(state: Any, **_: Any) -> dict[str, str]:
    """Send the event of a heartbeat at once."""
    dispatcher = state.consumer.event_dispatcher
    if not dispatcher.enabled:
        return {"error": _NO_HEARTBEAT}
    every_s = getattr(state.consumer.heart, "interval", 5.0)
    dispatcher.send("worker-heartbeat", freq=every_s, loadavg=load_average(), **SOFTWARE_INFO)
    return {"ok": "heartbeat sent"}


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
    return [
        {
            "id": str(claim.stage_run_id),
            "name": TASK,
            "args": [],
            "kwargs": {**{name: getattr(claim, name) for name in SHOWN_FIELDS}, "started_at": claimed_at},
            "type": TASK,
            "hostname": state.hostname,
            "time_start": claimed_at,
            "acknowledged": True,
            "delivery_info": {"routing_key": f"{claim.pipeline}.{claim.stage}"},
            "worker_pid": os.getpid(),
        }
        for claim, claimed_at in state.consumer.pool.executor.claims_in_flight()
    ]
