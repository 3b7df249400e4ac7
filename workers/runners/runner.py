"""``Runner``: the interface of all runners. A runner loads one stage's model and runs its prompts in batches.

A stage's ``kind`` names a runner: an entry point of ``omni_jobs.runners``. A charter: only what all runners share
belongs here.
"""

from collections.abc import Callable
from typing import Protocol

from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import EnginePrompt, OmniModelRunnerOutput, Progress

ProgressSink = Callable[[Progress], None]
"""Receives progress on the event loop, as often as the runner likes, because the receiver throttles it."""


class Runner(Protocol):
    """Runs the prompts of one stage on the stage's model. All methods run on one event loop."""

    def __init__(self, args: OmniEngineArgs) -> None:
        """Prepare, and load nothing yet. Raises ConfigError for a model or settings that it cannot run."""

    async def start(self) -> None:
        """Load the model. Raises ConfigError when it cannot be loaded, and EngineDead when its engine ends."""

    async def run(self, prompt: EnginePrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        """Run one prompt to its end and return its output. It is called for many prompts at once, which are batched.

        ``progress`` is called as the run advances. Cancelling the run frees what the prompt holds in the engine.
        Raises ModelError for a prompt that the model cannot process or of another runner's type, PayloadTooLarge when
        its hidden states can never fit the worker's budget, StorageFull when the spool is full, OutOfMemory, and
        EngineDead.
        """

    async def close(self) -> None:
        """Free everything; safe to call twice and after a failed start."""

    @property
    def healthy(self) -> bool:
        """True while the engine can take another prompt."""
