"""The Celery app of the workers: ``celery -A workers.app worker -P custom -Q <pipeline>.<stage> -n <slot>``."""

from __future__ import annotations

import sys
from typing import Any

import workers.consumer.remote_control  # noqa: F401  (registers its commands with Celery)
from omni_jobs.broker.celery_app import celery_app
from omni_jobs.broker.hints import TASK
from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.settings import settings
from workers.consumer.pool import HintIntake

__all__ = ["app"]

try:
    app = celery_app(settings(), load_pipelines(settings().resolved_stage_configs))
except ConfigError as error:
    sys.exit(f"celery worker: {error}")  # Celery would show a traceback
app.set_current()
app.steps["consumer"].add(HintIntake)


@app.task(name=TASK, ignore_result=True)  # type: ignore[untyped-decorator]
def run_stage(hints: list[Any]) -> None:
    """The name hints travel under. They go to the pool's executor as they are popped, never to a call of this."""
    raise TypeError("stage runs are carried out by workers.consumer.pool:StagePool; start the worker with -P custom")
