"""``StageLLM``: a stage and its engine, for the queue's executor and for offline use."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from omni_jobs.errors import ModelError
from omni_jobs.media.wall import MediaWall
from omni_jobs.payloads import Payload
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.prompts.renderers import checkpoint_of
from omni_jobs.settings import Settings
from workers.execution.device_time import DeviceTime
from workers.runners import create_runner
from workers.runners.contained import Contained
from workers.runners.model_threads import ModelThreads
from workers.runners.runner import CURRENT_RUN, ProgressSink, ResumableRunner, Runner, Snapshots, TellingRunner
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.stage import Stage
from workers.stages.types import OmniModelRunnerOutput, StageInput

if TYPE_CHECKING:
    from omni_jobs.new_job import NewJob


_PROMPT_THREADS = 8


class StageLLM:
    """One stage with the runner of its engine: ``start``, any number of ``generate`` at once, ``close``.

    An async context manager, which starts and closes; a failed start frees what was loaded. All methods run on one
    event loop. docs/offline.md runs one stage alone.
    """

    def __init__(self, stage: Stage, runner: Runner, cuda_devices: Iterable[int] = ()) -> None:
        """Join a stage with the runner of its kind; nothing is loaded yet.

        ``cuda_devices`` are the indices of the CUDA devices on which the runner will load its model. A model without
        any counts as one on one device, such as the CPU, and a stage without a model as one without a device.
        """
        self.stage = stage
        self.runner = runner
        self.cuda_devices = tuple(cuda_devices)
        self.device_time = DeviceTime(0 if stage.model is None else len(self.cuda_devices) or 1)
        self._resumable = runner if isinstance(runner, ResumableRunner) else None
        self._telling = runner if isinstance(runner, TellingRunner) else None
        self._prompts = ModelThreads(_PROMPT_THREADS, stage.name)  # of its input processor
        self._running: dict[int, int] = {}  # the stage runs of which the runner runs prompts, and how many

    @classmethod
    def create(cls, pipeline: Pipeline, stage_name: str, settings: Settings) -> StageLLM:
        """Return the ``StageLLM`` of a pipeline's stage, not started. Raises ConfigError; NotFound: no such stage."""
        config = pipeline.stage(stage_name)
        stage = Stage(
            pipeline,
            config,
            checkpoint_of(pipeline, config, settings.models),
            MediaWall(settings),
            job_ids_in_pictures=settings.job_ids_in_pictures,
        )
        args = OmniEngineArgs.for_stage(config, stage.model, settings)
        return cls(stage, create_runner(config, args), args.cuda_devices)

    async def start(self) -> None:
        """Load the stage's input processor and its runner's model. Raises ConfigError, or EngineDead."""
        _ = self.stage.processor
        await self.runner.start()

    @property
    def snapshot_origin(self) -> Mapping[str, Any] | None:
        """The ``snapshot_origin`` of the runner, once it has started; None for one that takes no snapshots."""
        return None if self._resumable is None else self._resumable.snapshot_origin

    @property
    def computing(self) -> Collection[int]:
        """The stage runs for which the engine, or the stage's input processor on a thread, computes now.

        A runner that cannot tell is taken to compute for all whose prompts it runs.
        """
        in_engine = self._running if self._telling is None else self._telling.computing
        return {*in_engine, *self._prompts.computing}

    def input_of(
        self,
        job: NewJob,
        *,
        upstream: Mapping[str, Payload] | None = None,
        has_successors: bool = False,
        job_id: str = "offline",
    ) -> StageInput[Any]:
        """Return the stage input of an admitted request, to pass to ``generate``.

        Raises InvalidRequest for a parameter that is wrong.
        ``upstream``: the payloads of the stage's ``inputs``, by stage name.
        ``has_successors``: whether a later stage takes this stage's payload.
        """
        return self.stage.input_of(
            job_id=job_id,
            request=job.request,
            media=[medium.data for medium in job.unstored],
            upstream=upstream or {},
            seed=job.seed,
            has_successors=has_successors,
        )

    async def generate(
        self,
        stage_input: StageInput[Any],
        progress: ProgressSink = lambda progress: None,
        snapshots: Snapshots | None = None,
    ) -> OmniModelRunnerOutput:
        """Turn a stage input into the engine's prompt, run that and return the runner's output.

        ``snapshots`` are for a runner that can be resumed. Offline there are none.
        Call the output's ``free`` once its hidden states are stored, because they hold memory of the engine's budget.
        Raises OmniJobsError carrying the stage's name, and the payload's key where the prompt is wrong; other
        exceptions of the model's code pass as they are.
        """
        with self.stage.named_in_errors(), Contained():
            if self.stage.config.blocking_prompts:
                # Decoding a video takes seconds; the other stage runs of this worker go on meanwhile.
                prompt = await self._prompts.run(partial(self.stage.make_prompt, stage_input))
            else:
                prompt = self.stage.make_prompt(stage_input)
            stage_run = CURRENT_RUN.get()
            self._running[stage_run] = self._running.get(stage_run, 0) + 1
            try:
                with self.device_time.taken_by(stage_run):
                    if snapshots is not None and self._resumable is not None:
                        return await self._resumable.run(prompt, progress, snapshots)
                    return await self.runner.run(prompt, progress)
            except ModelError as error:
                if error.field is not None:  # of the prompt, which no longer knows the payload's key
                    error.key = error.key or stage_input.upstream_key
                raise
            finally:
                self._running[stage_run] -= 1
                if not self._running[stage_run]:
                    del self._running[stage_run]

    async def close(self) -> None:
        """End the engine and the media's decoders; safe to call twice."""
        try:
            await self.runner.close()
        finally:
            await self._prompts.close()
            if self.stage.wall is not None:
                await asyncio.to_thread(self.stage.wall.close)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
