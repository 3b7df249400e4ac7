"""``OmniModelConfig`` and ``OmniEngineArgs``: the typed configuration of a stage's model and of its engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from pydantic import ConfigDict

from omni_jobs.errors import ConfigError
from omni_jobs.fetch.guard import Guard
from omni_jobs.pipelines.engine_settings import Device, EngineSettings
from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
from omni_jobs.prompts.checkpoint_files import check_checkpoint
from omni_jobs.servers import Server
from omni_jobs.settings import Settings
from workers.stages.devices import resolve_device

if TYPE_CHECKING:
    import torch


@runtime_checkable
class EngineModel(Protocol):
    """The part of vLLM's ``ModelConfig`` that ``OmniModelConfig`` reads, with vLLM's names."""

    dtype: Any  # torch's, once vLLM has resolved it
    max_model_len: int
    hf_config: Any
    multimodal_config: Any

    def get_vocab_size(self) -> int: ...

    def get_hidden_size(self) -> int: ...

    def get_inputs_embeds_size(self) -> int: ...

    def get_total_num_hidden_layers(self) -> int: ...


@dataclass(frozen=True, slots=True)
class OmniModelConfig:
    """The part of a checkpoint that a stage loads, for its runner and its input processor.

    For a stage on vLLM it wraps vLLM's ``ModelConfig`` once its engine has started: what stands in config.json, as vLLM
    understands it with the stage's engine arguments. The properties that say so raise ConfigError before.
    """

    __pydantic_config__: ClassVar = ConfigDict(arbitrary_types_allowed=True)  # engine arguments cross processes as JSON

    path: Path  # a checkpoint directory, in the layout of its family
    family: str  # qwen2_5_omni …
    component: str | None  # thinker, talker, code2wav …; None: the whole checkpoint
    voices: tuple[str, ...] = ()
    prompt_embeds: bool = False  # whether its prompts may be embeddings
    weights: str | None = None  # float8: in 8 bit; None: in the engine's dtype
    offload_blocks: bool = False  # whether its blocks stay in host memory
    vllm: Any = field(default=None, compare=False, repr=False)  # ``in_engine``, or None; no process gets another's

    @classmethod
    def for_stage(cls, pipeline: Pipeline, stage: StageConfig, path: Path | None) -> OmniModelConfig | None:
        """Return the model of a stage, whose checkpoint is at ``path``; None for a stage without a model.

        Raises ConfigError when the checkpoint is missing or cannot be used.
        """
        if stage.model is None or stage.family is None:
            return None
        if path is None:
            own = f"{pipeline.name}.{stage.name}"
            option, keys = "--model PATH", f"{pipeline.name} or {own}"
            if stage.model != pipeline.model:
                option, keys = f"--model {own}=PATH", own
            raise ConfigError(
                f"stage {stage.name} of {pipeline.name} needs a checkpoint: give {option}, or OMNI_JOBS_MODELS "
                f"with the key {keys}",
                field="model.path",
                stage=stage.name,
            )
        try:
            check_checkpoint(path)
        except ConfigError as error:
            raise ConfigError(
                f"the checkpoint cannot be used: {error}", field="model.path", stage=stage.name
            ) from error
        for name in stage.family.checkpoint_files:
            if not (path / name).is_file():
                message = f"no checkpoint at {path}: {name} is missing"
                raise ConfigError(message, field="model.path", stage=stage.name)
        first = "prompt_embeds" in pipeline.accepts and not stage.inputs
        prompt_embeds = first or "embeds" in stage.inputs.values()
        return cls(path, stage.model.family, stage.component, pipeline.voices, prompt_embeds)

    @property
    def in_engine(self) -> EngineModel:
        """vLLM's ``ModelConfig``. Raises ConfigError before the stage's engine has started, and without vLLM."""
        if self.vllm is None:
            raise ConfigError(f"no engine of vLLM's has {self.family}'s component {self.component!r}", field="model")
        found: EngineModel = self.vllm
        return found

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its weights and hidden states."""
        dtype: torch.dtype = self.in_engine.dtype
        return dtype

    @property
    def max_model_len(self) -> int:
        """The length of its context in tokens, prompt and reply together."""
        return int(self.in_engine.max_model_len)

    @property
    def vocabulary_size(self) -> int:
        """The rows of its table of embeddings, which may be more than its tokenizer has tokens."""
        return int(self.in_engine.get_vocab_size())

    @property
    def hidden_size(self) -> int:
        """How many numbers a hidden state has."""
        return int(self.in_engine.get_hidden_size())

    @property
    def embeds_size(self) -> int:
        """How many numbers an input embedding has."""
        return int(self.in_engine.get_inputs_embeds_size())

    @property
    def layers(self) -> int:
        """The number of its decoder layers, on all ranks together."""
        return int(self.in_engine.get_total_num_hidden_layers())

    @property
    def hf_config(self) -> Any:
        """Its config, a PretrainedConfig of Transformers."""
        return self.in_engine.hf_config

    @property
    def media_limits(self) -> Mapping[str, int]:
        """The most media of each kind that a prompt may hold, as the stage's ``limit_mm_per_prompt`` says.

        A kind that is missing has no limit but the model's; {} for a model of text.
        """
        found = self.in_engine.multimodal_config
        return {} if found is None else {kind: int(each.count) for kind, each in found.limit_per_prompt.items()}


def needed_model(model: OmniModelConfig | None, stage: StageConfig) -> OmniModelConfig:
    """Return the model of an input processor's stage. Raises ConfigError for a stage without one."""
    if model is None:
        raise ConfigError(f"processor {stage.processor} needs a model", field="processor", stage=stage.name)
    return model


@dataclass(frozen=True, slots=True)
class OmniEngineArgs:
    """The values from which a stage's runner starts its engine."""

    stage: str
    model: OmniModelConfig | None
    device: Device | Literal["auto"]  # auto: the runner chooses; only for runners without torch
    device_index: int | None
    max_in_flight: int  # the stage's slots
    engine: EngineSettings = field(default_factory=EngineSettings)  # of the runner's own class
    spool_dir: Path | None = None  # the directory of tensors between engine and worker; None: /dev/shm
    min_free_bytes: int = 0  # bytes that stay free in the spool's filesystem
    servers: Mapping[str, Server] = field(default_factory=dict)  # that remote stages may use, by name
    guard: Guard | None = None  # of links that a remote stage's server names elsewhere; None: it fetches none
    capture_bytes: int | None = None  # limit of hidden states kept at a time; None: from the host's memory
    measures: bool = False  # whether the engine keeps its own metrics (omni_jobs.metrics.engine_metrics), if it has any

    @property
    def cuda_devices(self) -> range:
        """The indices of the CUDA devices that the engine uses; empty where it uses none, or the runner chooses."""
        first = self.device_index or 0
        return range(first, first + self.engine.cards) if self.device == "cuda" else range(0)

    @classmethod
    def for_stage(cls, stage: StageConfig, model: OmniModelConfig | None, settings: Settings) -> OmniEngineArgs:
        """Return a stage's engine arguments, from its stage config and ``settings``, which take precedence.

        Raises ConfigError when the device cannot be used.
        """
        device, index = _device(stage, settings)
        engine = stage.engine_settings
        if device != "auto":
            engine = engine.with_memory_shares(
                device,
                gpu_memory_utilization=settings.gpu_memory_utilization,
                kv_cache_memory_bytes=settings.kv_cache_memory_bytes,
            )
        return cls(
            stage=stage.name,
            model=model,
            device=device,
            device_index=index,
            max_in_flight=stage.slots,
            engine=engine,
            spool_dir=settings.spool_dir,
            min_free_bytes=settings.min_free_bytes,
            servers=settings.servers,
            guard=Guard.of(settings),
            capture_bytes=settings.capture_bytes,
            measures=settings.metrics_port is not None,
        )


def _device(stage: StageConfig, settings: Settings) -> tuple[Device | Literal["auto"], int | None]:
    """Return kind and index of the stage's device: torch's, or the wanted one for a runner without torch."""
    wanted = _wanted_device(stage, settings)
    if stage.runner.torch:
        return resolve_device(wanted, stage.name)
    kind, _, index = wanted.partition(":")
    known: Mapping[str, Device | Literal["auto"]] = {"auto": "auto", "cpu": "cpu", "cuda": "cuda"}
    return known[kind], int(index) if index else None


def _wanted_device(stage: StageConfig, settings: Settings) -> str:
    """Return the settings' device, or the stage config's; of ``cuda`` in settings the stage config picks the index."""
    if settings.device == "auto" or stage.device.startswith(settings.device):
        return stage.device
    return settings.device
