"""``SteppingRunner``, which ``benchmarks.stepping`` declares: it waits in steps, with a snapshot after each few."""

import asyncio
import os
import time
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple, TextIO

from benchmarks.stepping import EVERY, STEP_S, STEPS, SteppingEngine, after
from omni_jobs.errors import EngineDead
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.messages import last_user_text
from workers.runners.in_process_runner import InProcessRunner
from workers.runners.runner import ProgressSink, Snapshots
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import EnginePrompt, OmniModelRunnerOutput, Progress, Snapshot, StageInput

__all__ = ["StepProcessor", "SteppingRunner"]


class _StepPrompt(NamedTuple):
    text: str
    snapshots: Snapshots | None = None


class StepProcessor:
    """Makes a prompt of the last message. Its name in a stage config is ``step``."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Do nothing: there is no checkpoint to read."""

    def __call__(self, stage_input: StageInput[Any]) -> _StepPrompt:
        """Return the prompt."""
        return _StepPrompt(last_user_text(stage_input.request))


class SteppingRunner(InProcessRunner[_StepPrompt, SteppingEngine]):
    """Takes the steps of any number of prompts at once. Implements ``ResumableRunner``."""

    _log: TextIO | None = None

    def load(self) -> None:
        self._log = (self.engine.log / f"{os.getpid()}").open("w", buffering=1, encoding="utf-8")

    def free(self) -> None:
        if self._log is not None:
            self._log.close()

    @property
    def snapshot_origin(self) -> Mapping[str, Any] | None:
        return {"component": "stepping"}

    async def run(
        self, prompt: EnginePrompt, progress: ProgressSink, snapshots: Snapshots | None = None
    ) -> OmniModelRunnerOutput:
        """Run a prompt; with ``snapshots`` go on from the newest, and put new ones there."""
        with_snapshots = prompt._replace(snapshots=snapshots) if isinstance(prompt, _StepPrompt) else prompt
        return await super().run(with_snapshots, progress)

    async def produce(self, prompt: _StepPrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        """Return the text and the state after the last step, which says whether each was taken once, in order."""
        if self._log is None:
            raise EngineDead("it has not started")
        newest = None if prompt.snapshots is None else prompt.snapshots.newest
        begin = 0 if newest is None else newest.steps_done
        state: int = zlib.crc32(prompt.text.encode()) if newest is None else newest.values["state"]
        for step in range(begin + 1, STEPS + 1):
            await asyncio.sleep(STEP_S)
            state = after(step, state)
            self._log.write(f"{time.time()}\t{step}\t{prompt.text}\n")
            progress(Progress(step, STEPS, "steps", resumed_at=begin or None))
            if prompt.snapshots is not None and step % EVERY == 0 and step < STEPS:
                prompt.snapshots.put(Snapshot({}, {"state": state}, step))
        return OmniModelRunnerOutput(text=f"{prompt.text}: {state:08x}")
