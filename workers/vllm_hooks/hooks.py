"""``HOOKS`` lists the names of vLLM that we override, replace, or rely on without its types, and that may move.

``check_hooks`` names every hook that has moved. A test and every start of an engine call it. pyproject.toml pins vLLM
exactly. No hook is what mypy checks by vLLM's types: its public API, and the attributes that we read of its objects.
docs/vllm-hooks.md says of each what vLLM's V2 model runner has in its place.
"""

import importlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass

from omni_jobs.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Hook:
    """One name of vLLM that we override, replace, call or read; ``check_hooks`` looks for it."""

    owner: str  # module:Class, or module for a function
    name: str  # of a method or an attribute
    parameters: tuple[str, ...] | None = None  # a method's, without self
    used_in: str | None = None  # a method of the owner that must use ``self.name``

    @property
    def label(self) -> str:
        """Its name in messages and in docs/vllm-hooks.md: Class.name, or Class.method → name for a name in a method."""
        owner = self.owner.rpartition(":")[2].rpartition(".")[2]
        return f"{owner}.{self.name}" if self.used_in is None else f"{owner}.{self.used_in} → {self.name}"


_RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
_CPU_RUNNER = "vllm.v1.worker.cpu_model_runner:CPUModelRunner"
_WORKER = "vllm.v1.worker.gpu_worker:Worker"
_CPU_WORKER = "vllm.v1.worker.cpu_worker:CPUWorker"
_LORA = "vllm.lora.ops.torch_ops.lora_ops"
_XGRAMMAR = "vllm.v1.structured_output.backend_xgrammar"

# Methods that we override, call or replace: (owner, name, parameters).
_METHODS = (
    (_RUNNER, "load_model", "load_dummy_weights model"),
    (_CPU_RUNNER, "load_model", "load_dummy_weights"),
    (_RUNNER, "_update_states", "scheduler_output"),
    (_RUNNER, "_on_request_state_removed", "req_id req_state"),
    (_RUNNER, "_init_mrope_positions", "req_state"),
    (_RUNNER, "_calc_mrope_positions", "scheduler_output"),
    (_RUNNER, "_preprocess", "scheduler_output num_input_tokens intermediate_tensors"),
    (_RUNNER, "_model_forward", "input_ids positions intermediate_tensors inputs_embeds model_kwargs"),
    (_RUNNER, "_sample", "logits spec_decode_metadata"),
    ("vllm.model_executor.models.interfaces:EagleModelMixin", "_set_aux_hidden_state_layers", "layers"),
    (_WORKER, "init_device", ""),
    (_CPU_WORKER, "init_device", ""),
    (_LORA, "bgmv_shrink", "inputs lora_b_weights output_tensor lora_indices_tensor scaling"),
    (_LORA, "bgmv_expand", "inputs lora_b_weights output_tensor lora_indices_tensor add_inputs"),
    (
        _LORA,
        "bgmv_expand_slice",
        "inputs lora_b_weights output_tensor lora_indices_tensor slice_offset slice_size add_inputs",
    ),
    (_XGRAMMAR, "has_xgrammar_unsupported_json_features", "schema"),
    (f"{_XGRAMMAR}:XgrammarBackend", "compile_grammar", "request_type grammar_spec stop_token_ids"),
)
# Names that a method of vLLM must use, because it calls our override, or sets what we read or reads what we set.
_USED_IN = (
    (_RUNNER, "_update_states", "_on_request_state_removed _init_mrope_positions"),
    (_RUNNER, "execute_model", "_preprocess _model_forward use_aux_hidden_state_outputs"),
    (_RUNNER, "_dummy_run", "use_aux_hidden_state_outputs"),
    (_RUNNER, "sample_tokens", "_sample"),
    (_RUNNER, "_prepare_inputs", "query_start_loc _calc_mrope_positions"),
    (_RUNNER, "_calc_mrope_positions", "mrope_positions"),
    (_RUNNER, "_preprocess", "enable_prompt_embeds supports_mm_inputs sync_and_gather_intermediate_tensors"),
    (_RUNNER, "sync_and_gather_intermediate_tensors", "intermediate_tensors"),
    (_RUNNER, "_bookkeeping_sync", "discard_request_mask"),
    (_WORKER, "_init_workspace_and_model_runner", "model_runner"),
    (_CPU_WORKER, "init_device", "model_runner"),
    ("vllm.v1.engine.core_client:MPClient", "__init__", "resources"),
)
# Attributes that we read of a value without a type, and a static method that we replace.
_FIELDS = (
    ("vllm.v1.engine.core_client:BackgroundResources", "ctx input_socket output_socket"),
    ("vllm.v1.engine.core:EngineCoreProc", "run_engine_core"),
    ("vllm.config.vllm:VllmConfig", "use_v2_model_runner"),
)

HOOKS: tuple[Hook, ...] = (
    *(Hook(owner, name, tuple(parameters.split())) for owner, name, parameters in _METHODS),
    *(Hook(owner, name, used_in=method) for owner, method, names in _USED_IN for name in names.split()),
    *(Hook(owner, name) for owner, names in _FIELDS for name in names.split()),
)


def moved_hooks(hooks: Sequence[Hook] = HOOKS) -> list[str]:
    """Return one sentence for each hook that the installed vLLM lacks or has in another form; [] when all fit."""
    return [problem for hook in hooks if (problem := _problem_of(hook)) is not None]


def check_hooks() -> None:
    """Raise ConfigError naming every hook that has moved."""
    if moved := moved_hooks():
        import vllm

        raise ConfigError(f"vLLM {vllm.__version__} is not the one these runners know: " + "; ".join(moved))


def _problem_of(hook: Hook) -> str | None:
    """Return how the hook has moved; None if it has not."""
    module, _, name = hook.owner.partition(":")
    try:
        owner = importlib.import_module(module)
        owner = getattr(owner, name) if name else owner
    except (ImportError, AttributeError):
        return f"{hook.owner} is gone"
    if hook.used_in is not None:
        method = getattr(owner, hook.used_in, None)
        if method is None:
            return f"{hook.owner}.{hook.used_in} is gone"
        if f"self.{hook.name}" not in inspect.getsource(method):
            return f"{hook.owner}.{hook.used_in} no longer uses self.{hook.name}"
        return None
    fields = {*getattr(owner, "__dataclass_fields__", ()), *getattr(owner, "__struct_fields__", ())}
    if not hasattr(owner, hook.name) and hook.name not in fields:
        return f"{hook.owner}.{hook.name} is gone"
    if hook.parameters is not None:
        parameters = tuple(inspect.signature(getattr(owner, hook.name)).parameters)[1 if name else 0 :]
        if parameters != hook.parameters:
            return f"{hook.owner}.{hook.name} takes {parameters}, not {hook.parameters}"
    return None
