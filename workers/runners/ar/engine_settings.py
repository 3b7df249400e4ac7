"""interim"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from omni_jobs.pipelines.engine_settings import Device, EngineSettings

MediaModality = Literal["text", "audio", "image", "video"]


class _Overrides(BaseModel):
    """Settings of a stage's engine, under vLLM's names. ``None`` leaves the choice to the engine or the checkpoint."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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


class ArEngine(_Overrides, EngineSettings):
    """Engine settings, and under ``cpu`` those that replace them on hosts without an accelerator."""

    cpu: _Overrides | None = None

    def on(self, device: Device) -> Self:
        """Return the engine settings on this kind of device: on ``cpu``, those under ``cpu`` replace the others."""
        base = self.model_dump(exclude={"cpu"}, exclude_unset=True)
        if device == "cpu" and self.cpu is not None:
            base |= self.cpu.model_dump(exclude_unset=True)
        return type(self)(**base)

    def decisive(self) -> dict[str, Any]:
        found = self.model_dump(
            mode="json",
            include={"dtype": True, "max_model_len": True, "cpu": {"dtype", "max_model_len"}},
            exclude_defaults=True,
        )
        return {k: v for k, v in found.items() if v}

    def vllm_args(self) -> dict[str, Any]:
        """Return the keyword arguments for vLLM's ``AsyncEngineArgs``; vLLM chooses those that are not set."""
        return self.model_dump(exclude_none=True, exclude={"cpu"})
