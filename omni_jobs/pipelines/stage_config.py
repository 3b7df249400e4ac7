"""The types of a stage config: a pipeline, its stages, their engines' settings.

load_pipeline(path)                 in :mod:`omni_jobs.pipelines.loader`: reads and checks ``stage_configs/*.yaml``
pipeline.stages_for(["audio"])      the part of the graph that a job needs, in topological order
pipeline.stage("talker").slots      what one stage may do
pipeline.digest                     identifies what decides a job's result
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from omni_jobs.errors import NotFound
from omni_jobs.pipelines.declarations import Flow
from omni_jobs.pipelines.parameters import PARAMETERS_OF_KIND, StageKind, StageParameters
from omni_jobs.retry import RetryLimits

Modality = Literal["text", "audio"]
"""An output that a job can ask for."""

InputModality = Literal["text", "audio", "image", "video", "prompt_embeds"]
"""An input that a job can bring; ``prompt_embeds`` are embeddings in place of messages."""

MediaModality = Literal["text", "audio", "image", "video"]

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EngineSettings(_Frozen):
    """Settings of a stage's engine, under vLLM's names. ``None`` leaves the choice to the engine or the checkpoint."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = None
    max_model_len: Annotated[int, Field(ge=16)] | None = None
    max_num_seqs: Annotated[int, Field(ge=1, le=4096)] | None = None
    max_num_batched_tokens: Annotated[int, Field(ge=16)] | None = None
    block_size: Annotated[int, Field(ge=1)] | None = None
    enforce_eager: bool | None = None
    enable_prefix_caching: bool | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    kv_cache_memory_bytes: Annotated[int, Field(ge=1 << 20)] | None = None
    tensor_parallel_size: Annotated[int, Field(ge=1)] | None = None
    limit_mm_per_prompt: dict[MediaModality, Annotated[int, Field(ge=0)]] | None = None
    skip_mm_profiling: bool | None = None
    max_batch_frames: Annotated[int, Field(ge=1)] | None = None  # diffusion stages: mel frames in one batch


class StageEngine(EngineSettings):
    """Engine settings, and under ``cpu`` those that replace them on hosts without an accelerator."""

    cpu: EngineSettings | None = None

    def on(self, device: Literal["cpu", "cuda"]) -> EngineSettings:
        """Return the engine settings on this kind of device: on ``cpu``, those under ``cpu`` replace the others."""
        base = self.model_dump(exclude={"cpu"}, exclude_unset=True)
        if device == "cpu" and self.cpu is not None:
            base |= self.cpu.model_dump(exclude_unset=True)
        return EngineSettings(**base)


_DECISIVE_OF_ENGINE: Any = {"dtype": True, "max_model_len": True, "cpu": {"dtype", "max_model_len"}}


class StageConfig(_Frozen):
    """The settings of one stage in a pipeline file."""

    name: Name = ""  # the key in the YAML's ``stages``
    kind: StageKind
    component: Name | None = None  # the part of the checkpoint: thinker, talker, code2wav …
    processor: Name  # an input processor's name: omni_jobs.pipelines.declarations
    inputs: dict[Name, Flow] = {}  # earlier stage → the flow taken from it; empty: the stage reads the job's request
    produces: Flow
    engine: StageEngine = StageEngine()
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    slots: Annotated[int, Field(ge=1, le=4096, description="stage runs in flight in one worker")] = 8
    time_limit_s: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    queue_limit_s: Annotated[float, Field(gt=0)] | None = None  # a job that waits longer for this stage expires
    retries: RetryLimits = RetryLimits()
    max_payload_bytes: Annotated[int, Field(ge=0)] = 1 << 30
    parameters: dict[str, Any] = {}  # defaults; ``kind`` decides their type

    def decisive(self) -> dict[str, Any]:
        """Return the settings that decide a job's result, a dict of JSON: the stage's part of the pipeline's digest."""
        graph = {"kind", "component", "processor", "inputs", "produces"}
        decisive: dict[str, Any] = self.model_dump(mode="json", include=graph, exclude_defaults=True)
        parameters = self.parameters_with({}).model_dump(mode="json", exclude_defaults=True)
        engine = self.engine.model_dump(mode="json", include=_DECISIVE_OF_ENGINE, exclude_defaults=True)
        return decisive | {"parameters": parameters, "engine": {name: each for name, each in engine.items() if each}}

    def parameters_with(self, overrides: Mapping[str, Any]) -> StageParameters:
        """Return the stage's default parameters with a job's ``overrides`` applied.

        Raises pydantic's ValidationError for an unknown name or a value that is not allowed.
        """
        return PARAMETERS_OF_KIND[self.kind].model_validate({**self.parameters, **overrides})

    def hints_per_message(self, at_most: int) -> int:
        """Return how many hints for this stage go into one message of the queue: ``at_most``, or fewer.

        A message holds hints for a quarter of a worker's slots, because larger ones would leave other workers idle.
        """
        return max(1, min(at_most, self.slots // 4))


class OutputConfig(_Frozen):
    """An entry of a pipeline's ``outputs``: the stage that makes the modality."""

    stage: Name


class ModelConfig(_Frozen):
    """The checkpoint that all stages of a pipeline load their components from."""

    architecture: Name  # an entry point of the group omni_jobs.prompts
    path: str | None = None  # a checkpoint directory; usually given at start (--model)


class Pipeline(_Frozen):
    """A stage graph: a directed acyclic graph from a job's request to its outputs. One YAML file, with a version."""

    name: Name
    version: Annotated[str, Field(pattern=r"^[0-9A-Za-z.\-]{1,20}$")]
    description: str = ""
    model: ModelConfig | None = None
    accepts: tuple[InputModality, ...] = ("text",)
    voices: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = ()  # the first is the default
    stages: Annotated[dict[Name, StageConfig], Field(min_length=1)]
    outputs: Annotated[dict[Modality, OutputConfig], Field(min_length=1)]

    @cached_property
    def digest(self) -> str:
        """16 hex digits that identify the settings which decide a job's path and result.

        A worker claims only jobs of its own digest, so no job runs with two versions of a file.
        Included: name, version, accepted inputs, outputs, architecture, voices; per stage kind, component, processor,
        inputs, flow, default parameters, and the engine's ``dtype`` and ``max_model_len``, because these two decide
        which tokens come and where they must end.
        Excluded: slots, limits, retries, memory, batches and devices, because an operator tunes them while jobs wait;
        descriptions; and the checkpoint's path, because the same weights lie elsewhere on each host.
        A field set to its default counts as unset, so that a new field with a default changes no digest.
        """
        decisive = {
            "name": self.name,
            "version": self.version,
            "architecture": None if self.model is None else self.model.architecture,
            "accepts": sorted(self.accepts),
            "voices": self.voices,
            "stages": {name: stage.decisive() for name, stage in self.stages.items()},
            "outputs": {modality: output.stage for modality, output in self.outputs.items()},
        }
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def default_voice(self) -> str | None:
        """The voice of a job whose request names none; None where the pipeline has no voices."""
        return self.voices[0] if self.voices else None

    def stage(self, name: str) -> StageConfig:
        """Return the stage of this name. Raises NotFound."""
        try:
            return self.stages[name]
        except KeyError:
            known = ", ".join(self.stages)
            raise NotFound(f"pipeline {self.name} has no stage {name!r}; it has {known}", field="stage") from None

    def queue(self, stage: str) -> str:
        """Return the name of a stage's Celery queue, ``PIPELINE.STAGE``. Raises NotFound."""
        return f"{self.name}.{self.stage(stage).name}"

    def successors(self, stage: str) -> tuple[str, ...]:
        """Return the names of the stages that take this stage's payload, whether or not a job runs them."""
        return tuple(name for name, config in self.stages.items() if stage in config.inputs)

    def stages_for(self, modalities: Iterable[str]) -> tuple[StageConfig, ...]:
        """Return the configs of the stages that a job with these output modalities needs, each after its inputs.

        Raises NotFound for a modality that the pipeline does not make.
        """
        ordered: dict[str, StageConfig] = {}
        for modality in modalities:
            output = self.outputs.get(modality)  # type: ignore[call-overload]
            if output is None:
                known = ", ".join(self.outputs)
                raise NotFound(f"pipeline {self.name} does not make {modality!r}; it makes {known}", field="modalities")
            self._put_after_inputs(output.stage, ordered)
        return tuple(ordered.values())

    def _put_after_inputs(self, name: str, ordered: dict[str, StageConfig]) -> None:
        if name not in ordered:
            for earlier in self.stages[name].inputs:
                self._put_after_inputs(earlier, ordered)
            ordered[name] = self.stages[name]
