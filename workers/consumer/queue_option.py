"""The check of a worker's Celery command line: ``-Q`` names one stage's queue, and ``-c`` follows from the stage."""

import sys
from collections.abc import Iterable
from typing import Any

from omni_jobs.broker.celery_app import OmniCelery
from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.pipelines.stage_config import Pipeline


def stage_of_queues(queues: Iterable[str], pipelines: Pipelines) -> tuple[Pipeline, str]:
    """Return the pipeline and the name of the one stage whose queue ``-Q`` names.

    Raises ConfigError when there is not exactly one queue, or when no stage has it.
    """
    names = list(queues)
    if len(names) != 1:
        given = ", ".join(names) or "none"
        raise ConfigError(f"a worker serves one stage: give one queue, -Q pipeline.stage (given: {given})", field="-Q")
    for pipeline in pipelines.values():
        for stage in pipeline.stages:
            if pipeline.queue(stage) == names[0]:
                return pipeline, stage
    known = ", ".join(pipeline.queue(stage) for pipeline in pipelines.values() for stage in pipeline.stages)
    raise ConfigError(f"no stage has the queue {names[0]!r}; there are {known or 'none'}", field="-Q")


def check_command_line(sender: str, instance: Any, conf: Any, options: dict[str, Any], **_: Any) -> None:
    """Check ``-Q`` before anything starts, and derive ``-c`` from the stage's slots when it is not given.

    A receiver of Celery's signal ``celeryd_init``. For a wrong ``-Q`` it ends the process with one line of text.
    """
    app = instance.app
    if not isinstance(app, OmniCelery):
        return
    queues = options.get("queues") or ()
    names = queues.split(",") if isinstance(queues, str) else list(queues)
    try:
        pipeline, stage = stage_of_queues(names or [queue.name for queue in conf.task_queues], app.pipelines)
    except ConfigError as error:
        sys.exit(f"celery worker: {error}")
    if not options.get("concurrency"):
        conf.worker_concurrency = pipeline.stage(stage).slots
