"""``Stage``: a place in the graph. ``StageLLM``: that place with its engine.

A stage knows what it consumes, from whom, how its inputs are made, and what of its
runner's output the next stage and the user get. The queue's executor and ``OmniLLM``
both run stages through here, so both give the same results.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from pydantic import ValidationError

from omni_jobs.errors import ConfigError, InvalidRequest, ModelError, OmniJobsError, TimeLimitExceeded
from omni_jobs.media.wall import MediaWall
from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload, Tensor
from omni_jobs.pipelines import declarations
from omni_jobs.pipelines.parameters import ArParameters, StageParameters
from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
from omni_jobs.settings import Settings
from workers.execution.time_limit import TimeLimit
from workers.runners import create_runner
from workers.runners.runner import ProgressSink, Runner
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig
from workers.stages.types import Artifact, EnginePrompt, OmniModelRunnerOutput, Progress, StageInput

if TYPE_CHECKING:
    from omni_jobs.requests import AdmittedRequest

__all__ = ["InputProcessor", "Stage", "StageLLM"]


class InputProcessor(Protocol):
    """Makes the engine's prompt from the job and the payloads of earlier stages.

    What it takes stands in its declaration, an ``omni_jobs.pipelines.declarations.ProcessorDeclaration``.
    """

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Raises ConfigError when the checkpoint lacks what it needs."""

    def __call__(self, stage_input: StageInput) -> EnginePrompt:
        """Raises PayloadError or ModelError naming the field that does not fit."""


class Stage:
    """One configured step of a pipeline and its place in the graph."""

    def __init__(
        self, pipeline: Pipeline, config: StageConfig, model_path: Path | None, wall: MediaWall | None = None
    ) -> None:
        """``wall`` decodes media; without one, jobs with media cannot be run."""
        self.pipeline = pipeline
        self.wall = wall
        self.config = config
        self.model = OmniModelConfig.for_stage(pipeline, config, model_path)

    @property
    def name(self) -> str:
        return self.config.name

    @cached_property
    def processor(self) -> InputProcessor:
        """The stage's input processor. That it fits the stage was checked when the stage config was loaded."""
        declared = declarations.processor(self.config.processor)
        try:
            kind: type[InputProcessor] = resolve_name(declared.implementation)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"input processor {self.config.processor} cannot be loaded: {error}", field="processor", stage=self.name
            ) from error
        return kind(self.config, self.model)

    @cached_property
    def _parameters(self) -> StageParameters:
        return self.config.parameters_with({})

    def input_of(
        self,
        *,
        job_id: str,
        request: Mapping[str, Any],
        media: Sequence[bytes | memoryview],
        upstream: Mapping[str, Payload],
        seed: int,
        capture: bool,
    ) -> StageInput:
        """One job at this stage; the job's parameters over the stage config's. Raises InvalidRequest.

        ``capture``: whether a later stage of the job takes this stage's payload.
        """
        overrides = request.get("parameters", {}).get(self.name, {})
        try:
            parameters = self.config.parameters_with(overrides) if overrides else self._parameters
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in ("stages", self.name, *first["loc"]))
            raise InvalidRequest(first["msg"], field=field, stage=self.name) from None
        return StageInput(
            job_id=job_id,
            request=request,
            media=media,
            upstream=upstream,
            parameters=parameters,
            seed=seed,
            # Codes and text are the tokens themselves: whoever takes them wants no hidden states.
            capture=capture and (self.config.kind != "ar" or self.config.produces == "hidden_states"),
            wall=self.wall,
        )

    @asynccontextmanager
    async def time_limit(self) -> AsyncIterator[TimeLimit]:
        """Cancel what runs inside when the stage's time is over. Raises TimeLimitExceeded."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as limit:
                clock = TimeLimit(self.config.time_limit_s, lambda: limit.reschedule(loop.time()))
                try:
                    yield clock
                finally:
                    clock.cancel()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise self.time_limit_exceeded() from error

    def time_limit_exceeded(self) -> TimeLimitExceeded:
        seconds = self.config.time_limit_s
        return TimeLimitExceeded(f"not done after {seconds:g} s, the stage's time limit", stage=self.name)

    def make_prompt(self, stage_input: StageInput) -> EnginePrompt:
        """The runner's prompt. Errors carry this stage's name."""
        try:
            return self.processor(stage_input)
        except OmniJobsError as error:
            error.stage = error.stage or self.name
            raise

    def payload_of(self, output: OmniModelRunnerOutput, stage_input: StageInput, attempt: int) -> Payload:
        """What the next stage gets: the captured rows, the tokens, the named outputs."""
        tensors: dict[str, Any] = {name: _to_wire(value) for name, value in output.multimodal_outputs.items()}
        if output.hidden_states is not None:
            tensors["hidden_states"] = _to_wire(output.hidden_states)
        if self.config.kind == "ar":
            name = "codes" if self.config.produces == "codes" else "token_ids"
            tensors[name] = _to_wire(np.asarray(output.token_ids, dtype=np.int64))
        values = dict(output.values)
        if output.prompt_token_ids:
            values["prompt_tokens"] = len(output.prompt_token_ids)
        voice = (stage_input.request.get("audio") or {}).get("voice")
        if voice is not None:
            values["voice"] = voice
        return Payload(
            manifest=Manifest(kind=self.config.produces, job_id=stage_input.job_id, stage=self.name, attempt=attempt),
            prompt_embeds=None,
            additional_information=AdditionalInformationPayload(tensors=tensors, values=values),
        )

    def result_of(self, output: OmniModelRunnerOutput, stage_input: StageInput) -> dict[str, Any]:
        """What of the job's result this stage knows: JSON, small."""
        result: dict[str, Any] = {}
        text_output = self.pipeline.outputs.get("text")
        if text_output is not None and text_output.stage == self.name:
            if "text" in stage_input.request.get("modalities", ()):
                result["text"] = output.text or ""
            if output.finish_reason is not None:
                result["finish_reason"] = output.finish_reason
        if self.config.kind == "ar":
            usage = {"prompt_tokens": len(output.prompt_token_ids), "completion_tokens": len(output.token_ids)}
            result["usage"] = {self.name: usage}
            if stage_input.request.get("return_token_ids"):
                result["token_ids"] = {self.name: list(output.token_ids)}
        return result

    def warnings_of(self, output: OmniModelRunnerOutput, stage_input: StageInput) -> list[dict[str, str]]:
        """What the user should know of this stage's output: {code, message} each."""
        if output.finish_reason != "length":
            return []
        what = "speech" if self.config.produces == "codes" else "text"
        limit = "at the end of its context"
        if (
            isinstance(stage_input.parameters, ArParameters)
            and len(output.token_ids) >= stage_input.parameters.max_tokens
        ):
            limit = f"at its max_tokens of {stage_input.parameters.max_tokens}"
        return [{"code": "cut_short", "message": f"the {self.name} stopped {limit}: the {what} is probably cut"}]

    @property
    def makes_artifacts(self) -> bool:
        """Whether the user may fetch something of this stage's output."""
        audio_output = self.pipeline.outputs.get("audio")
        return audio_output is not None and audio_output.stage == self.name

    def artifacts_of(self, output: OmniModelRunnerOutput) -> list[Artifact]:
        """What the user may fetch of this stage's output."""
        if not self.makes_artifacts:
            return []
        from workers.stages.wav import encode_wav

        try:
            data = encode_wav(output.multimodal_outputs.get("waveform"), int(output.values["sampling_rate"]))
        except ModelError as error:
            error.stage = error.stage or self.name
            raise
        return [Artifact("audio.wav", "audio/wav", data)]


def _to_wire(value: Any) -> Any:
    """Torch's and numpy's tensors as a payload's."""
    if isinstance(value, np.ndarray):
        return Tensor.from_numpy(value)
    if isinstance(value, Mapping):
        return {name: _to_wire(tensor) for name, tensor in value.items()}
    if isinstance(value, list | tuple):
        return [_to_wire(tensor) for tensor in value]
    # Only a stage with a model comes here. An echo worker never imports torch: 3 s and 300 MB.
    from workers.stages.tensors import from_torch

    return from_torch(value)


def _unread(progress: Progress) -> None:
    """Nobody reads the progress."""


class StageLLM:
    """A stage and its engine: ``start``, any number of ``generate`` at once, ``close``; or ``async with``.

    docs/offline.md runs one stage alone, and three by hand.
    """

    def __init__(self, stage: Stage, runner: Runner) -> None:
        self.stage = stage
        self.runner = runner

    @classmethod
    def create(cls, pipeline: Pipeline, stage_name: str, settings: Settings) -> StageLLM:
        """The stage as this process's settings describe it; nothing is loaded yet. Raises ConfigError."""
        config = pipeline.stage(stage_name)
        stage = Stage(pipeline, config, settings.models.get(pipeline.name), MediaWall(settings))
        args = None
        if stage.model is not None:
            args = OmniEngineArgs.for_stage(config, stage.model, settings)
        return cls(stage, create_runner(config, args))

    async def start(self) -> None:
        """Load the processor's and the runner's parts of the checkpoint. Raises ConfigError."""
        _ = self.stage.processor
        await self.runner.start()

    def input_of(
        self,
        job: AdmittedRequest,
        *,
        upstream: Mapping[str, Payload] | None = None,
        capture: bool = False,
        job_id: str = "offline",
    ) -> StageInput:
        """An admitted request at this stage; ``upstream``: the payloads of the stage's ``inputs``."""
        return self.stage.input_of(
            job_id=job_id,
            request=job.request,
            media=[media.data for media in job.media],
            upstream=upstream or {},
            seed=job.seed,
            capture=capture,
        )

    async def generate(self, stage_input: StageInput, progress: ProgressSink = _unread) -> OmniModelRunnerOutput:
        """Run one job's stage. Raises OmniJobsError carrying the stage's name."""
        try:
            return await self.runner.run(await self._make_prompt(stage_input), progress)
        except OmniJobsError as error:
            error.stage = error.stage or self.stage.name
            raise

    async def _make_prompt(self, stage_input: StageInput) -> EnginePrompt:
        if self.stage.config.kind == "echo":
            return self.stage.make_prompt(stage_input)
        # Decoding a video takes seconds; the other stage runs of this worker go on meanwhile.
        return await asyncio.to_thread(self.stage.make_prompt, stage_input)

    async def close(self) -> None:
        try:
            await self.runner.close()
        finally:
            if self.stage.wall is not None:
                await asyncio.to_thread(self.stage.wall.close)

    async def __aenter__(self) -> Self:
        """Raises ConfigError; what was loaded by then is freed."""
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def healthy(self) -> bool:
        return self.runner.healthy
