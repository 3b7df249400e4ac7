"""``VllmEngine``: what a stage config says under ``engine`` for a stage on vLLM: vLLM's arguments by their own names.

``StageConfig.engine_settings`` makes one of the file, of the class that the stage's runner derives from it, and the
worker's runner takes ``vllm_args`` of it. Here stand the arguments that the platform reads itself;
``refused_arguments`` has those that no stage config may give. All others are checked by vLLM's own types, where it is
installed: ``check_arguments`` for commands, ``vllm_hooks`` for a worker.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from omni_jobs.pipelines.engine_settings import Device, EngineSettings
from omni_jobs.pipelines.yaml_source import FieldPath
from workers.runners.on_vllm.refused_arguments import REFUSED, refused_parts
from workers.runners.on_vllm.speculation import Speculation

Modality = Literal["text", "audio", "image", "video"]

_OPEN = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)

DECISIVE: Mapping[str, Any] = {
    # The context, and how a prompt becomes tokens.
    **dict.fromkeys(("max_model_len", "mm_processor_kwargs", "video_pruning_rate")),
    "tokenizer_mode": "auto",
    "mm_device_do_normalize": True,
    "video_pruning_method": "evs",
    # The model that runs.
    **dict.fromkeys(("config_format", "model_impl", "load_format"), "auto"),
    "hf_overrides": {},
    "lora_target_modules": None,
    **dict.fromkeys(("disable_sliding_window", "enable_tower_connector_lora", "enable_moe_shared_loras"), False),
    # The precision of weights, of the KV cache and of states.
    **dict.fromkeys(("dtype", "kv_cache_dtype", "lora_dtype", "mamba_cache_dtype", "mamba_ssm_cache_dtype"), "auto"),
    **dict.fromkeys(("quantization", "quantization_config", "mm_encoder_attn_dtype", "mm_encoder_fp8_scale_path")),
    "kv_cache_dtype_skip_layers": [],
    "mm_encoder_fp8_scale_save_margin": 1.5,
    "mamba_config": None,
    "enable_mamba_cache_stochastic_rounding": False,
    "mamba_cache_philox_rounds": 0,
    # Which tokens are drawn, and where they end.
    "generation_config": "auto",
    "override_generation_config": {},
    "use_fp64_gumbel": False,
    "structured_outputs_config": None,
    "speculative_config": None,  # a job that draws gets other tokens of the same distribution
}
"""The arguments that decide a job's result → vLLM's defaults. The digest of a pipeline contains those set to others.

The rest decides speed and room: how many requests run together, memory, kernels, parallelism. A change of kernel or of
parallelism may round a sum in another way and is not held to be another result.
"""

_ALWAYS_COUNTED = frozenset({"dtype", "max_model_len"})  # counted in the digest even where they are vLLM's defaults

RUNNERS_OWN: Final = frozenset({"lora_modules", "tool_parser", "hidden_layers"})
"""The runners' own settings, which are no arguments of vLLM, and are the same on each kind of host."""

_BESIDE = RUNNERS_OWN | {"cpu", "cuda"}  # what stands beside vLLM's arguments


def engine_error(title: str, problems: list[tuple[FieldPath, str]], value: Any) -> ValidationError:
    """Return pydantic's error for these (field, message) pairs."""
    lines: list[InitErrorDetails] = [
        {
            "type": PydanticCustomError("engine_argument", "{message}", {"message": message}),
            "loc": at,
            "input": value,
        }
        for at, message in problems
    ]
    return ValidationError.from_exception_data(title, lines)


def _whole(value: Any, handler: ValidatorFunctionWrapHandler) -> JsonValue:
    """Refuse what is no JSON at the field itself; pydantic would name members of its union too."""
    try:
        checked: JsonValue = handler(value)
    except ValidationError:
        words = "null, true, false, a text, a finite number, or a list or mapping of these"
        raise ValueError(f"Input should be {words}") from None
    return checked


_Json = Annotated[JsonValue, WrapValidator(_whole)]


def _media_limit(value: JsonValue) -> JsonValue:
    numbers = list(value.values()) if isinstance(value, dict) else [value]
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("Input should be an integer from 0 on or a mapping of such integers")
    return value


class VllmArguments(BaseModel):
    """Engine arguments of vLLM by any of its names; each is None where vLLM or the checkpoint decides.

    The fields are those that the platform reads, or that vLLM checks late or not at all. The digest has their values as
    these types make them.
    """

    model_config = _OPEN
    __pydantic_extra__: dict[str, _Json]

    refused: ClassVar[Mapping[str, str]] = REFUSED

    dtype: str | None = None
    max_model_len: Annotated[int, Field(ge=16)] | None = None
    max_num_seqs: Annotated[int, Field(ge=1, le=4096)] | None = None
    max_num_batched_tokens: Annotated[int, Field(ge=16)] | None = None
    block_size: Annotated[int, Field(ge=1)] | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    kv_cache_memory_bytes: Annotated[int, Field(ge=1 << 20)] | None = None
    tensor_parallel_size: Annotated[int, Field(ge=1)] | None = None
    pipeline_parallel_size: Annotated[int, Field(ge=1)] | None = None
    hf_overrides: dict[str, _Json] | None = None
    limit_mm_per_prompt: dict[Modality, Annotated[JsonValue, AfterValidator(_media_limit)]] | None = None
    video_pruning_rate: float | None = None
    mm_encoder_fp8_scale_save_margin: float | None = None
    enable_lora: bool | None = None
    max_loras: Annotated[int, Field(ge=1, le=64)] | None = None
    max_cpu_loras: Annotated[int, Field(ge=1)] | None = None
    max_lora_rank: Annotated[int, Field(ge=1)] | None = None
    speculative_config: Speculation | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, given: Any) -> Any:
        """Refuse what ``refused`` names, before any type is checked."""
        if not isinstance(given, Mapping):
            return given
        problems: list[tuple[FieldPath, str]] = []
        for name, value in given.items():
            if name in cls.refused or name not in _BESIDE:
                problems += refused_parts((str(name),), value, cls.refused)
            elif name not in cls.model_fields:
                message = f"stands beside cpu and cuda, not in them: {name} is the same on each kind of host"
                problems.append(((name,), message))
        if problems:
            raise engine_error(cls.__name__, problems, given)
        return given


class VllmEngine(VllmArguments, EngineSettings):
    """Engine arguments of vLLM by their own names; under ``cpu`` and ``cuda`` those that replace them on such hosts."""

    model_config = _OPEN  # not that of EngineSettings

    cpu: VllmArguments | None = None
    cuda: VllmArguments | None = None

    @property
    def cards(self) -> int:
        """The number of GPUs that the engine uses, one for each rank."""
        return (self.tensor_parallel_size or 1) * (self.pipeline_parallel_size or 1)

    @model_validator(mode="after")
    def _check_each_host_kind(self) -> Self:
        kinds: tuple[Device, ...] = ("cuda", "cpu")
        for kind in kinds:
            arguments = self._on(kind)
            tokens, sequences = arguments.get("max_num_batched_tokens"), arguments.get("max_num_seqs")
            if tokens is not None and sequences is not None and tokens < sequences:
                message = f"{tokens} is less than max_num_seqs, {sequences}: each needs a token in a step"
                raise self._problem(kind, "max_num_batched_tokens", message)
            self._check_on(kind, arguments)
        return self

    def _check_on(self, device: Device, arguments: Mapping[str, Any]) -> None:
        """Check the arguments that are set on this kind of host; for a runner with checks of its own."""

    def _problem(self, device: Device, name: str, message: str) -> ValidationError:
        """Return pydantic's error for the field that sets an argument on this kind of host."""
        own: VllmArguments | None = getattr(self, device)
        at = (device, name) if own is not None and name in own.model_fields_set else (name,)
        return engine_error(type(self).__name__, [(at, message)], self._on(device).get(name))

    def on(self, device: Device) -> Self:
        """Return the settings on this kind of host: those under its name replace the others, null unsets."""
        beside = self.model_dump(include=set(RUNNERS_OWN), exclude_defaults=True)
        return type(self).model_validate(self._on(device) | beside)

    def _on(self, device: Device) -> dict[str, Any]:
        """Return the arguments that are set on this kind of host."""
        own: VllmArguments | None = getattr(self, device)
        base = self.model_dump(exclude=set(_BESIDE), exclude_unset=True)
        return base | ({} if own is None else own.model_dump(exclude_unset=True))

    def vllm_args(self, device: Device) -> dict[str, Any]:
        """Return the keyword arguments for vLLM's ``AsyncEngineArgs``; vLLM chooses those that are not set."""
        return {name: value for name, value in self._on(device).items() if value is not None}

    def decisive(self) -> dict[str, Any]:
        """Return the settings that decide a job's result, a dict of JSON: the engine's part of the pipeline's digest.

        What is set to vLLM's default counts as unset, and so does an override that changes nothing.
        """
        base = self.model_dump(mode="json", include=set(DECISIVE), exclude_unset=True)
        decisive = _counted(base, {})
        for kind in ("cpu", "cuda"):
            own: VllmArguments | None = getattr(self, kind)
            if own is not None:
                changed = _counted(own.model_dump(mode="json", include=set(DECISIVE), exclude_unset=True), base)
                decisive |= {kind: changed} if changed else {}
        return decisive


def _counted(values: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of ``values`` that differ from ``base``, and of the two that always count those that are set."""
    counted = {}
    for name, value in values.items():
        if name in _ALWAYS_COUNTED:
            if value is not None:
                counted[name] = value
        elif _or_default(name, value) != _or_default(name, base.get(name)):
            counted[name] = value
    return counted


def _or_default(name: str, value: Any) -> Any:
    return DECISIVE[name] if value is None else value
