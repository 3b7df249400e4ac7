"""The check of a worker's Celery command line: ``-P`` is the stage's pool, ``-Q`` names one stage's queue.

``-c`` follows from the stage.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from celery.concurrency import get_implementation

from omni_jobs.broker.celery_app import OmniCelery
from omni_jobs.broker.worker_command import POOL_ENVIRONMENT
from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.pipelines.stage_config import Pipeline

_WITHOUT_EFFECT = {
    "autoscale": "a worker runs as many stage runs at once as its slots; -c lowers them",
    "time_limit": "a stage's time limit is time_limit_s in the stage config",
    "soft_time_limit": "a stage's time limit is time_limit_s in the stage config",
    "max_tasks_per_child": "a worker has one engine, and no children that could be renewed",
    "max_memory_per_child": "a worker has one engine, and no children that could be renewed",
}
"""Celery's options that this pool cannot follow: name → what there is instead."""


def _check_pool(options: Mapping[str, Any], configured: str) -> None:
    """Raise ConfigError if a worker is not started with the stage's pool, or with an option that it cannot follow.

    ``options`` are Celery's, by name; ``configured`` is its setting ``worker_pool``, for a worker without ``-P``.
    """
    [(variable, ours)] = POOL_ENVIRONMENT.items()
    pool = get_implementation(options.get("pool") or options.get("pool_cls") or configured)
    if f"{pool.__module__}:{pool.__qualname__}" != ours:
        raise ConfigError(
            f"stage runs need their own pool, and this would be {pool.__module__}: start the worker with {variable}="
            f"{ours} in the environment and -P custom, or with omni-jobs worker, which gives both",
            field="-P",
        )
    for name, instead in _WITHOUT_EFFECT.items():
        if options.get(name):
            raise ConfigError(f"has no effect here; {instead}", field=f"--{name.replace('_', '-')}")


def stage_of_queues(queues: Iterable[str], pipelines: Pipelines) -> tuple[Pipeline, str]:
    """Return the pipeline and the name of the one stage whose queue, or whose queue's alias, ``-Q`` names.

    Raises ConfigError when there is not exactly one queue, or when no stage has it.
    """
    names = list(queues)
    if len(names) != 1:
        given = ", ".join(names) or "none"
        raise ConfigError(f"a worker serves one stage: give one queue, -Q pipeline.stage (given: {given})", field="-Q")
    queue = pipelines.queue_aliases.get(names[0], names[0])
    for pipeline in pipelines.values():
        for stage in pipeline.stages:
            if pipeline.queue(stage) == queue:
                return pipeline, stage
    known = ", ".join(f"{label}.{stage}" for label, pipeline in pipelines.items() for stage in pipeline.stages)
    raise ConfigError(f"no stage has the queue {names[0]!r}; there are {known or 'none'}", field="-Q")


def check_command_line(sender: str, instance: Any, conf: Any, options: dict[str, Any], **_: Any) -> None:
    """Check ``-P`` and ``-Q`` before anything starts, and derive ``-c`` from the stage's slots when it is not given.

    A receiver of Celery's signal ``celeryd_init``. For a wrong option it ends the process with one line of text.
    """
    app = instance.app
    if not isinstance(app, OmniCelery):
        return
    queues = options.get("queues") or ()
    names = queues.split(",") if isinstance(queues, str) else list(queues)
    try:
        _check_pool(options, conf.worker_pool)
        pipeline, stage = stage_of_queues(names or [queue.name for queue in conf.task_queues], app.pipelines)
    except ConfigError as error:
        sys.exit(f"celery worker: {error}")
    if not options.get("concurrency"):
        conf.worker_concurrency = pipeline.stage(stage).slots
