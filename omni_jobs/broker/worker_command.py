"""The stock Celery command line of one stage's worker, which an operator may also type or put into a unit file."""

import shlex
import sys
from collections.abc import Mapping
from importlib.util import find_spec

from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.stage_config import Pipeline, StageConfig

POOL_ENVIRONMENT = {"CELERY_CUSTOM_WORKER_POOL": "workers.consumer.pool:StagePool"}
"""The environment variable that names the pool of ``-P custom``; Celery reads it before ``-A``."""


def check_worker_installed(pipeline: Pipeline, stage: str) -> None:
    """Raise ConfigError if a package is missing that a worker of this stage needs, NotFound for an unknown stage.

    Imports neither torch nor vLLM.
    """
    if find_spec("workers") is None:
        raise ConfigError("the package 'workers' is not installed here: install omni-jobs with its worker extra")
    config = pipeline.stage(stage)
    for package, install in config.runner.packages.items():
        if find_spec(package) is None:
            raise ConfigError(
                f"stage {stage} of {pipeline.name} needs the package {package}, which is not installed here: {install}"
            )


def worker_command(
    config: StageConfig,
    queue: str,
    *,
    slot: str | None = None,
    concurrency: int | None = None,
    log_level: str = "INFO",
) -> list[str]:
    """Return the command line that starts one stage's worker, as arguments; run it with ``POOL_ENVIRONMENT`` set.

    ``queue`` is the stage's, or its alias. ``slot`` is the Celery node's name: unique among the running workers, and
    the same after a restart, because a worker at once takes back the stage runs of its slot. ``concurrency`` bounds
    the stage runs at a time; None takes the stage's slots.
    """
    concurrency = concurrency or config.slots
    slot = slot or f"{queue.replace('@', '-')}-1@%h"
    return [
        *(sys.executable, "-m", "celery", "-A", "workers.app", "worker"),
        *("-P", "custom", "-Q", queue, "-n", slot, "-c", str(concurrency)),
        *("--without-gossip", "--without-mingle", "--heartbeat-interval", "10", "-l", log_level),
    ]


def as_shell_line(command: list[str], environment: Mapping[str, str]) -> str:
    """Return a worker's command with its environment as a person would type it: ``NAME=VALUE celery …``."""
    words = ["celery", *command[3:]] if command[:3] == [sys.executable, "-m", "celery"] else command
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in environment.items()), shlex.join(words)])
