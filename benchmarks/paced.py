"""A pipeline of one stage that takes its time and computes nothing, as one that waits for a GPU, and its workers."""

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from omni_jobs.broker.worker_command import POOL_ENVIRONMENT, worker_command
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.settings import Settings
from omni_jobs.stack.environments import worker_environment

__all__ = ["STAGE", "Workers", "write_pipelines"]

STAGE = "work"
_CONFIG = """
name: {name}
version: "1"
accepts: [text]
stages:
  {stage}:
    kind: echo
    processor: echo
    produces: text
    slots: {slots}
    parameters: {{delay_s: {run_s}}}
outputs:
  text: {{stage: {stage}}}
"""
_STOP_S = 60.0


def write_pipelines(directory: Path, names: Sequence[str], *, slots: int, run_s: float) -> None:
    """Make a directory of stage configs, with a pipeline of each name whose stage runs take ``run_s`` seconds."""
    directory.mkdir()
    for name in names:
        text = _CONFIG.format(name=name, stage=STAGE, slots=slots, run_s=run_s)
        (directory / f"{name}.yaml").write_text(text, encoding="utf-8")


class Workers:
    """Processes of workers of such a stage, which log to one file. ``started``: in the order of their starts."""

    def __init__(self, pipeline: Pipeline, settings: Settings, log: Path) -> None:
        self.log = log
        self._pipeline = pipeline
        self._environment = worker_environment(os.environ, settings) | POOL_ENVIRONMENT | {"OMP_NUM_THREADS": "1"}
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, slot: str) -> subprocess.Popen[bytes]:
        """Start a worker in a slot."""
        command = worker_command(self._pipeline.stage(STAGE), self._pipeline.queue(STAGE), slot=slot)
        with self.log.open("ab") as out:
            process = subprocess.Popen(command, env=self._environment, stdout=out, stderr=subprocess.STDOUT)
        self.started.append(process)
        return process

    def close(self) -> None:
        """Stop those that run, and wait until all have ended."""
        for process in self.started:
            process.terminate()
        for process in self.started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
            process.kill()  # which does nothing to one that has ended
            process.wait()
