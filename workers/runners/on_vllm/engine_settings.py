"""``VllmEngine``: the ``engine`` of a stage on vLLM in a stage config: vLLM's engine arguments, checked without vLLM.

``refused_arguments`` has the arguments that are refused, ``recorded_arguments`` the types of the others. Each runner on
vLLM derives its own settings from ``VllmEngine``.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, ValidationError, create_model, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from omni_jobs.pipelines.engine_settings import Device, EngineSettings
from workers.runners.on_vllm.recorded_arguments import STRICT, one_of, recorded_arguments, type_of
from workers.runners.on_vllm.refused_arguments import REFUSED, refused_parts

Modality = Literal["text", "audio", "image", "video"]

_AtLeast0 = Annotated[int, Field(ge=0)]

_MediaLimit = one_of([_AtLeast0, dict[str, _AtLeast0]], "an integer from 0 on or a mapping of such integers")

# Bounds that vLLM checks late, or not at all.
_BOUNDED: Mapping[str, Any] = {
    "max_model_len": Annotated[int, Field(ge=16)],
    "max_num_seqs": Annotated[int, Field(ge=1, le=4096)],
    "max_num_batched_tokens": Annotated[int, Field(ge=16)],
    "block_size": Annotated[int, Field(ge=1)],
    "gpu_memory_utilization": Annotated[float, Field(gt=0, le=1)],
    "kv_cache_memory_bytes": Annotated[int, Field(ge=1 << 20)],
    "tensor_parallel_size": Annotated[int, Field(ge=1)],
    "limit_mm_per_prompt": dict[Modality, _MediaLimit],  # type: ignore[valid-type]
    "max_loras": Annotated[int, Field(ge=1, le=64)],
    "max_cpu_loras": Annotated[int, Field(ge=1)],
}

DECISIVE = frozenset(
    {
        # The context, and how a prompt becomes tokens.
        *("max_model_len", "tokenizer_mode", "mm_processor_kwargs", "mm_device_do_normalize"),
        *("video_pruning_rate", "video_pruning_method"),
        # The model that runs.
        *("hf_overrides", "config_format", "model_impl", "load_format", "disable_sliding_window"),
        *("lora_target_modules", "enable_tower_connector_lora", "enable_moe_shared_loras"),
        # The precision of weights, of the KV cache and of states.
        *("dtype", "quantization", "quantization_config", "kv_cache_dtype", "kv_cache_dtype_skip_layers"),
        *("lora_dtype", "mm_encoder_attn_dtype", "mm_encoder_fp8_scale_path", "mm_encoder_fp8_scale_save_margin"),
        *("mamba_cache_dtype", "mamba_ssm_cache_dtype", "mamba_config", "enable_mamba_cache_stochastic_rounding"),
        *("mamba_cache_philox_rounds",),
        # Which tokens are drawn, and where they end.
        *("generation_config", "override_generation_config", "use_fp64_gumbel"),
    }
)
"""The arguments that decide a job's result; the digest of a pipeline contains them.

The others decide speed and room: how many requests run together, memory, kernels, parallelism. As before, a change of
kernel or of parallelism may round a sum in another way and is not held to be another result.
"""

_ALWAYS_COUNTED = frozenset({"dtype", "max_model_len"})  # counted in the digest even where they are vLLM's defaults

_BESIDE = frozenset({"cpu", "cuda", "lora_modules"})  # a runner's own settings, which are no arguments of vLLM


def engine_error(title: str, problems: list[tuple[tuple[str | int, ...], str]], value: Any) -> ValidationError:
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


class _Arguments(BaseModel):
    """Refuses what ``refused`` names and what vLLM does not know, before any type is checked."""

    model_config = STRICT

    refused: ClassVar[Mapping[str, str]] = REFUSED

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        problems: list[tuple[tuple[str | int, ...], str]] = []
        for name, value in given.items():
            if name in _BESIDE and name in cls.model_fields:
                continue
            if name in cls.model_fields or name in cls.refused:
                problems += refused_parts(name, value, cls.refused)
            else:
                problems.append(((str(name),), _unknown(str(name), cls)))
        if problems:
            raise engine_error(cls.__name__, problems, given)
        return given


def _unknown(name: str, model: type[_Arguments]) -> str:
    if name in _BESIDE:
        return f"stands beside cpu and cuda, not in them: {name} is the same on each kind of host"
    nearest = get_close_matches(name, set(model.model_fields) - set(model.refused), n=3, cutoff=0.6)
    return f"unknown key; did you mean {' or '.join(nearest)}?" if nearest else "unknown key"


if TYPE_CHECKING:

    class VllmArguments(_Arguments):
        """Engine arguments of vLLM; each is None where vLLM or the checkpoint decides."""

else:
    VllmArguments = create_model(
        "VllmArguments",
        __base__=_Arguments,
        __doc__="Engine arguments of vLLM; each is None where vLLM or the checkpoint decides.",
        **{
            name: (_BOUNDED.get(name, type_of(recorded["type"], name)) | None, None)
            for name, recorded in recorded_arguments().items()
            if name not in REFUSED
        },
    )


class VllmEngine(VllmArguments, EngineSettings):
    """Engine arguments of vLLM by their own names; under ``cpu`` and ``cuda`` those that replace them on such hosts."""

    cpu: VllmArguments | None = None
    cuda: VllmArguments | None = None

    @property
    def devices(self) -> int:
        """The number of GPUs that the engine uses, one for each rank."""
        ranks: int | None = getattr(self, "tensor_parallel_size", None)  # a field that is made of vLLM's list
        return ranks or 1

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
        beside = self.model_dump(include=set(_BESIDE - {"cpu", "cuda"}), exclude_defaults=True)
        return type(self).model_validate(self._on(device) | beside)

    def _on(self, device: Device) -> dict[str, Any]:
        """Return the arguments that are set on this kind of host."""
        own: VllmArguments | None = getattr(self, device)
        base = self.model_dump(exclude=set(_BESIDE), exclude_unset=True)
        return base | ({} if own is None else own.model_dump(exclude_unset=True))

    def vllm_args(self, device: Device) -> dict[str, Any]:
        """Return the keyword arguments for vLLM's ``AsyncEngineArgs``; vLLM chooses those that are not set."""
        return {name: value for name, value in self._on(device).items() if value is not None}

    def with_memory_shares(
        self, device: Device, *, gpu_memory_utilization: float | None, kv_cache_memory_bytes: int | None
    ) -> Self:
        """Return the settings on this kind of host, with an environment's memory shares in place of their own.

        ``gpu_memory_utilization`` is for GPUs, where it replaces ``kv_cache_memory_bytes`` too, to which vLLM would
        give precedence. ``kv_cache_memory_bytes`` is for CPUs. None leaves the stage config's. Raises pydantic's
        ValidationError for a share that is out of bounds.
        """
        engine = self.on(device)
        changes: dict[str, Any] = {}
        if device == "cuda" and gpu_memory_utilization is not None:
            changes = {"gpu_memory_utilization": gpu_memory_utilization, "kv_cache_memory_bytes": None}
        if device == "cpu" and kv_cache_memory_bytes is not None:
            changes = {"kv_cache_memory_bytes": kv_cache_memory_bytes}
        return type(self).model_validate(engine.model_dump(exclude_unset=True) | changes) if changes else engine

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
    return recorded_arguments()[name].get("default") if value is None else value
