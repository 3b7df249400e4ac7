"""``HOOKS`` lists each private name of vLLM that we use, because an upgrade may move it.

``check_hooks`` names every hook that has moved. A test and every start of an engine call it. pyproject.toml pins vLLM
exactly.
"""

import importlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass

from omni_jobs.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Hook:
    """One private name of vLLM that we override, call or read; ``check_hooks`` looks for it."""

    owner: str  # module:Class, or module for a function
    name: str  # of a method or an attribute
    parameters: tuple[str, ...] | None = None  # a method's, without self
    used_in: str | None = None  # a method of the owner that must use ``self.name``


_RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
_BATCH = "vllm.v1.worker.gpu_input_batch:InputBatch"
_WORKER = "vllm.v1.worker.gpu_worker:Worker"
_CPU_WORKER = "vllm.v1.worker.cpu_worker:CPUWorker"
_ENGINE = "vllm.v1.engine.async_llm:AsyncLLM"
_TOOLS = "vllm.tool_parsers.abstract_tool_parser:ToolParserManager"
_TOOL_PARSER = "vllm.tool_parsers.abstract_tool_parser:ToolParser"
_LORA = "vllm.lora.ops.torch_ops.lora_ops"

# Methods that we override or call: (owner, name, parameters).
_METHODS = (
    (_RUNNER, "__init__", "vllm_config device"),
    ("vllm.v1.worker.cpu_model_runner:CPUModelRunner", "__init__", "vllm_config device"),
    (_RUNNER, "_update_states", "scheduler_output"),
    (_RUNNER, "_on_request_state_removed", "req_id req_state"),
    (_RUNNER, "_init_mrope_positions", "req_state"),
    (_RUNNER, "_calc_mrope_positions", "scheduler_output"),
    (_RUNNER, "_preprocess", "scheduler_output num_input_tokens intermediate_tensors"),
    (_RUNNER, "_model_forward", "input_ids positions intermediate_tensors inputs_embeds model_kwargs"),
    (_RUNNER, "_sample", "logits spec_decode_metadata"),
    (_RUNNER, "get_model", ""),
    (_RUNNER, "load_model", "load_dummy_weights model"),
    ("vllm.v1.worker.cpu_model_runner:CPUModelRunner", "load_model", "load_dummy_weights"),
    ("vllm.model_executor.models.interfaces:EagleModelMixin", "_set_aux_hidden_state_layers", "layers"),
    ("vllm.config.model:ModelConfig", "get_hidden_size", ""),
    (_WORKER, "_make_model_runner", ""),
    (_CPU_WORKER, "init_device", ""),
    (_ENGINE, "collective_rpc", "method timeout args kwargs"),
    (_ENGINE, "abort", "request_id internal"),
    (_ENGINE, "shutdown", "timeout"),
    (_ENGINE, "add_lora", "lora_request"),
    (_LORA, "bgmv_shrink", "inputs lora_b_weights output_tensor lora_indices_tensor scaling"),
    (_LORA, "bgmv_expand", "inputs lora_b_weights output_tensor lora_indices_tensor add_inputs"),
    (
        _LORA,
        "bgmv_expand_slice",
        "inputs lora_b_weights output_tensor lora_indices_tensor slice_offset slice_size add_inputs",
    ),
    ("vllm.v1.structured_output.backend_xgrammar", "has_xgrammar_unsupported_json_features", "schema"),
    (
        "vllm.v1.structured_output.backend_xgrammar:XgrammarBackend",
        "compile_grammar",
        "request_type grammar_spec stop_token_ids",
    ),
    (_ENGINE, "get_tokenizer", ""),
    (_TOOL_PARSER, "__init__", "tokenizer tools"),
    (_TOOL_PARSER, "adjust_request", "request"),
    (_TOOL_PARSER, "extract_tool_calls", "model_output request"),
    ("vllm.renderers.base:BaseRenderer", "render_cmpl_async", "prompts tok_params prompt_extras skip_mm_cache"),
    ("vllm.renderers.registry:RendererRegistry", "register", "renderer_mode module class_name"),
    ("vllm.tokenizers.registry:_TokenizerRegistry", "register", "tokenizer_mode module class_name"),
)
# Names that a method of vLLM must use, because it calls our override or sets an attribute that we read.
_USED_IN = (
    (_RUNNER, "_update_states", "_on_request_state_removed _init_mrope_positions requests input_batch"),
    (_RUNNER, "execute_model", "_preprocess _model_forward use_aux_hidden_state_outputs"),
    (_RUNNER, "_dummy_run", "use_aux_hidden_state_outputs"),
    (_RUNNER, "sample_tokens", "_sample"),
    (_RUNNER, "_prepare_inputs", "query_start_loc _calc_mrope_positions"),
    (_RUNNER, "_calc_mrope_positions", "mrope_positions input_batch requests"),
    (_RUNNER, "_preprocess", "enable_prompt_embeds supports_mm_inputs sync_and_gather_intermediate_tensors"),
    (_RUNNER, "sync_and_gather_intermediate_tensors", "intermediate_tensors"),
    (_RUNNER, "_bookkeeping_sync", "discard_request_mask"),
    (_RUNNER, "__init__", "max_num_tokens max_num_reqs device dtype model_config"),
    ("vllm.v1.worker.gpu_input_batch:CachedRequestState", "__post_init__", "num_prompt_tokens"),
    (_BATCH, "__init__", "num_computed_tokens_cpu req_id_to_index generators"),
    (_WORKER, "_init_workspace_and_model_runner", "_make_model_runner"),
    (_WORKER, "init_device", "device"),
    ("vllm.v1.worker.worker_base:WorkerBase", "__init__", "vllm_config"),
    (_CPU_WORKER, "init_device", "model_runner"),
    (_ENGINE, "__init__", "model_config engine_core renderer output_handler"),
    ("vllm.v1.engine.core_client:MPClient", "__init__", "resources"),
)
# Attributes and fields that we read, and a static method that we replace.
_FIELDS = (
    (_BATCH, "req_ids num_reqs"),
    ("vllm.v1.worker.gpu_input_batch:CachedRequestState", "generator mrope_positions mrope_position_delta"),
    (
        "vllm.v1.core.sched.output:NewRequestData",
        "req_id prompt_len mm_features sampling_params num_computed_tokens",
    ),
    ("vllm.v1.core.sched.output:CachedRequestData", "resumed_req_ids"),
    ("vllm.v1.core.sched.output:SchedulerOutput", "scheduled_new_reqs scheduled_cached_reqs num_scheduled_tokens"),
    ("vllm.multimodal.inputs:PlaceholderRange", "offset length is_embed"),
    (_ENGINE, "errored"),
    (_TOOLS, "get_tool_parser tool_parsers lazy_parsers"),
    ("vllm.logprobs:FlatLogprobs", "start_indices end_indices token_ids logprobs ranks"),
    ("vllm.sampling_params:SamplingParams", "flat_logprobs structured_outputs"),
    ("vllm.sampling_params:StructuredOutputsParams", "json json_object"),
    ("vllm.v1.engine.core_client:BackgroundResources", "ctx input_socket output_socket"),
    ("vllm.v1.engine.core:EngineCoreProc", "run_engine_core"),
    ("vllm.config.vllm:VllmConfig", "use_v2_model_runner lora_config"),
    ("vllm.lora.punica_wrapper.punica_cpu", "bgmv_shrink bgmv_expand bgmv_expand_slice"),
    ("vllm.renderers.registry", "RENDERER_REGISTRY"),
    ("vllm.renderers.registry:RendererRegistry", "renderers"),
    ("vllm.tokenizers.registry", "TokenizerRegistry"),
    ("vllm.tokenizers.registry:_TokenizerRegistry", "tokenizers"),
    ("vllm.tokenizers.hf", "CachedHfTokenizer"),
    ("vllm.sampling_params:SamplingParams", "skip_reading_prefix_cache extra_args"),
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
