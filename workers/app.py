"""The Celery app of the workers: ``celery -A workers.app worker -P custom -Q <pipeline>.<stage> -n <slot>``."""

import logging
import os
import sys
from typing import Any

from celery import signals

import workers.consumer.remote_control  # noqa: F401  (registers its commands with Celery)
from omni_jobs.broker.celery_app import OmniCelery
from omni_jobs.broker.doorbell import TASK
from omni_jobs.errors import ConfigError
from omni_jobs.logs.secrets import know_secrets
from omni_jobs.logs.setup import VLLM_CONFIG, configure, take_over
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.settings import read_settings
from workers.consumer.command_line import check_command_line
from workers.consumer.hook_step import HookStep
from workers.consumer.kombu_hooks import guard_banner, leave_out_what_is_no_json

try:
    settings = read_settings(lambda line: print(f"celery worker: {line}", file=sys.stderr))
    app = OmniCelery(settings, load_pipelines(settings.resolved_stage_configs))
except ConfigError as error:
    sys.exit(f"celery worker: {error}")  # Celery would show a traceback
app.set_current()
app.steps["consumer"].add(HookStep)
if os.environ.get("VLLM_CONFIGURE_LOGGING", "1") != "0":  # it refuses both; before anything imports it
    os.environ.setdefault("VLLM_LOGGING_CONFIG_PATH", str(VLLM_CONFIG))


@signals.celeryd_init.connect(weak=False)  # type: ignore[untyped-decorator]
def log_from_the_start(**_: Any) -> None:
    """Log what is said before Celery makes its handlers, which replace ours, and errors that nothing catches."""
    know_secrets(settings)
    configure(settings.log, "worker")


signals.celeryd_init.connect(check_command_line)
signals.celeryd_init.connect(guard_banner if settings.log == "text" else leave_out_what_is_no_json)


@signals.after_setup_logger.connect(weak=False)  # type: ignore[untyped-decorator]
@signals.after_setup_task_logger.connect(weak=False)  # type: ignore[untyped-decorator]
def shape_lines(logger: logging.Logger, **_: Any) -> None:
    """Give Celery's handlers our form and filter."""
    take_over(logger, settings, "worker")


@app.task(name=TASK, ignore_result=True)  # type: ignore[untyped-decorator]
def run_stage() -> None:
    """Raise TypeError, because no worker should call this task: it only registers the name that doorbells bear.

    ``StagePool`` takes the doorbells itself. Celery's own pools would call it, in a worker without ``-P custom``.
    """
    raise TypeError("stage runs are carried out by workers.consumer.pool:StagePool; start the worker with -P custom")
