"""``Runner``: the interface of all runners. A runner loads one stage's model and runs its prompts in batches.

A stage's ``kind`` names a runner: an entry point of ``omni_jobs.runners``. A charter: only what all runners share
belongs here, and ``ResumableRunner`` and ``TellingRunner``, which a runner may implement.
"""

from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

from omni_jobs.errors import OmniJobsError
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import EnginePrompt, OmniModelRunnerOutput, Progress, Snapshot

ProgressSink = Callable[[Progress], None]
"""Receives progress on the event loop, as often as the runner likes, because the receiver throttles it."""

CURRENT_RUN: ContextVar[int] = ContextVar("current_run", default=0)
"""The id of the stage run for which a task works, so that a runner can tell which ones its engine computes.

The executor sets it, and tasks that a run starts inherit it; 0 outside a worker.
"""


class Runner(Protocol):
    """Runs the prompts of one stage on the stage's model. All methods run on one event loop."""

    def __init__(self, args: OmniEngineArgs) -> None:
        """Prepare, and load nothing yet. Raises ConfigError for a model or settings that it cannot run."""

    async def start(self) -> None:
        """Load the model. Raises ConfigError when it cannot be loaded, and EngineDead when its engine ends."""

    async def run(self, prompt: EnginePrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        """Run one prompt to its end and return its output. It is called for many prompts at once, which are batched.

        ``progress`` is called as the run advances. Cancelling the run frees what the prompt holds in the engine, and
        the run ends no sooner: one that has not ended within ``stop_limit_s`` hangs, and its worker starts anew.
        Calls that block are made on threads (``workers.runners.model_threads``): a blocked event loop stops all runs.
        Raises ModelError for a prompt that the model cannot process or of another runner's type, PayloadTooLarge when
        its hidden states can never fit the worker's budget, StorageFull when the spool is full, OutOfMemory, and
        EngineDead.
        """

    async def close(self) -> None:
        """Free everything; safe to call twice and after a failed start."""

    @property
    def healthy(self) -> bool:
        """True while the engine can take another prompt."""


@runtime_checkable
class TellingRunner(Runner, Protocol):
    """A runner that can tell which stage runs its engine computes, so that no other is blamed when the engine hangs.

    An engine hangs when it gets on with none of these for ``engine_stall_s``. That of a runner that cannot tell hangs
    when none of its runs gets on for so long, but for those that report ``WAITING``.
    """

    @property
    def computing(self) -> Collection[int]:
        """The stage runs for which the engine computes now, as ``CURRENT_RUN`` named them when ``run`` was called."""


class Snapshots(Protocol):
    """The snapshots of one stage run: the one from which it goes on, and where its runner puts new ones.

    All methods are called on the event loop, and return at once.
    """

    @property
    def newest(self) -> Snapshot | None:
        """The newest snapshot of the earlier attempts; None: there is none, so the run begins anew."""

    def put(self, snapshot: Snapshot) -> None:
        """Store a snapshot while the run goes on. One that waits to be stored is dropped for a newer one."""

    def refuse(self, error: OmniJobsError) -> None:
        """Note why ``newest`` cannot be used, so that the run begins anew."""

    def miss(self, error: OmniJobsError) -> None:
        """Note why a snapshot could not be taken. The run goes on."""


@runtime_checkable
class ResumableRunner(Runner, Protocol):
    """A runner that takes snapshots of its runs, and goes on from them."""

    @property
    def snapshot_origin(self) -> Mapping[str, Any] | None:
        """What two workers must have in common to hand on a snapshot, as JSON: family, component, dtype.

        It is known from ``start`` on. None: the model cannot be resumed.
        """

    async def run(
        self, prompt: EnginePrompt, progress: ProgressSink, snapshots: Snapshots | None = None
    ) -> OmniModelRunnerOutput:
        """Run one prompt as ``Runner.run`` says; with ``snapshots`` go on from the newest, and put new ones there."""
