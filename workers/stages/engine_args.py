"""``OmniModelConfig`` and ``OmniEngineArgs``: the typed configuration of a stage's model and of its engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.stage_config import EngineSettings, Pipeline, StageConfig
from omni_jobs.prompts.checkpoint_files import check_checkpoint
from omni_jobs.settings import Settings
from workers.stages.devices import Device, resolve_device


@dataclass(frozen=True, slots=True)
class OmniModelConfig:
    """Names the part of a checkpoint that a stage loads, for its runner and its input processor."""

    path: Path  # a checkpoint directory in the Hugging Face layout
    architecture: str  # qwen2_5_omni …
    component: str | None  # thinker, talker, code2wav …; None: the whole checkpoint
    voices: tuple[str, ...] = ()
    prompt_embeds: bool = False  # whether its prompts may be embeddings

    @classmethod
    def for_stage(cls, pipeline: Pipeline, stage: StageConfig, path: Path | None) -> OmniModelConfig | None:
        """Return a stage's model at ``path``, or else at the pipeline's path; None for a pipeline without a model.

        Raises ConfigError when the checkpoint is missing or cannot be used.
        """
        if pipeline.model is None:
            return None
        checkpoint = path or (Path(pipeline.model.path) if pipeline.model.path else None)
        if checkpoint is None:
            raise ConfigError(
                f"pipeline {pipeline.name} needs a checkpoint: give --model PATH or OMNI_JOBS_MODELS",
                field="model.path",
                stage=stage.name,
            )
        try:
            check_checkpoint(checkpoint)
        except ConfigError as error:
            raise ConfigError(
                f"the checkpoint cannot be used: {error}", field="model.path", stage=stage.name
            ) from error
        if not (checkpoint / "config.json").is_file():
            message = f"no checkpoint at {checkpoint}: config.json is missing"
            raise ConfigError(message, field="model.path", stage=stage.name)
        prompt_embeds = "prompt_embeds" in pipeline.accepts and not stage.inputs
        return cls(checkpoint, pipeline.model.architecture, stage.component, pipeline.voices, prompt_embeds)


@dataclass(frozen=True, slots=True)
class OmniEngineArgs:
    """The values from which ``create_runner``'s runner starts its engine."""

    stage: str
    model: OmniModelConfig
    device: Device
    device_index: int | None
    max_in_flight: int  # the stage's slots
    engine: EngineSettings = field(default_factory=EngineSettings)
    spool_dir: Path | None = None  # the directory of tensors between engine and worker; None: /dev/shm
    min_free_bytes: int = 0  # bytes that stay free in the spool's filesystem
    capture_bytes: int | None = None  # limit of hidden states kept at a time; None: from the host's memory

    @classmethod
    def for_stage(cls, stage: StageConfig, model: OmniModelConfig, settings: Settings) -> OmniEngineArgs:
        """Return a stage's engine arguments, from its stage config and ``settings``, which take precedence.

        Raises ConfigError when the device cannot be used.
        """
        kind, index = resolve_device(_wanted_device(stage, settings), stage.name)
        engine = stage.engine.on(kind)
        if kind == "cuda" and settings.gpu_memory_utilization is not None:
            engine = engine.model_copy(update={"gpu_memory_utilization": settings.gpu_memory_utilization})
        return cls(
            stage=stage.name,
            model=model,
            device=kind,
            device_index=index,
            max_in_flight=stage.slots,
            engine=engine,
            spool_dir=settings.spool_dir,
            min_free_bytes=settings.min_free_bytes,
            capture_bytes=settings.capture_bytes,
        )

    def vllm_args(self) -> dict[str, Any]:
        """Return the keyword arguments for vLLM's ``AsyncEngineArgs``; vLLM chooses those that are not set."""
        args = self.engine.model_dump(exclude_none=True, exclude={"max_batch_frames"})
        if self.model.prompt_embeds:
            args["enable_prompt_embeds"] = True
        return {"model": str(self.model.path), "disable_log_stats": True, **args}


def _wanted_device(stage: StageConfig, settings: Settings) -> str:
    """Return the settings' device, or the stage config's; of ``cuda`` in settings the stage config picks the index."""
    if settings.device == "auto" or stage.device.startswith(settings.device):
        return stage.device
    return settings.device
