"""All uses of vLLM's private API. No other package touches it.

    register      entry point vllm.general_plugins: registers model classes in each of vLLM's processes
    model_runner  vLLM's V1 model runner, with its private steps turned into plain hooks
    seeds         a generator for seeded sampling on CPUs
    worker        vLLM's worker for this platform, made to build our model runner
    engine        AsyncLLM: its start, its calls and its errors

``HOOKS`` lists each private name, because an upgrade of vLLM may move it; pyproject.toml pins vLLM exactly.
``check_hooks`` names every hook that has moved. A test and every start of an engine call it.
"""

from __future__ import annotations

import importlib
import inspect
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass

from omni_jobs.errors import ConfigError
from workers.models.components import model_classes
from workers.parent_death import end_with_parent

__all__ = ["HOOKS", "Hook", "check_hooks", "moved_hooks", "register"]


@dataclass(frozen=True, slots=True)
class Hook:
    """One private name of vLLM that we override, call or read."""

    owner: str  # module:Class
    name: str  # of a method or an attribute
    parameters: tuple[str, ...] | None = None  # a method's, without self
    read_in: str | None = None  # a method of the owner that must use ``self.name``


_RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
_CPU_RUNNER = "vllm.v1.worker.cpu_model_runner:CPUModelRunner"
_BATCH = "vllm.v1.worker.gpu_input_batch:InputBatch"
_STATE = "vllm.v1.worker.gpu_input_batch:CachedRequestState"
_NEW = "vllm.v1.core.sched.output:NewRequestData"
_CACHED = "vllm.v1.core.sched.output:CachedRequestData"
_STEP = "vllm.v1.core.sched.output:SchedulerOutput"

HOOKS: tuple[Hook, ...] = (
    # Overridden: the steps of vLLM's model runner.
    Hook(_RUNNER, "__init__", ("vllm_config", "device")),
    Hook(_CPU_RUNNER, "__init__", ("vllm_config", "device")),
    Hook(_RUNNER, "_update_states", ("scheduler_output",)),
    Hook(_RUNNER, "_on_request_state_removed", ("req_id", "req_state")),
    Hook(_RUNNER, "_init_mrope_positions", ("req_state",)),
    Hook(_RUNNER, "_preprocess", ("scheduler_output", "num_input_tokens", "intermediate_tensors")),
    Hook(
        _RUNNER,
        "_model_forward",
        ("input_ids", "positions", "intermediate_tensors", "inputs_embeds", "model_kwargs"),
    ),
    Hook(_RUNNER, "_sample", ("logits", "spec_decode_metadata")),
    # Called by these methods of vLLM, on which we rely.
    Hook(_RUNNER, "_on_request_state_removed", read_in="_update_states"),
    Hook(_RUNNER, "_init_mrope_positions", read_in="_update_states"),
    Hook(_RUNNER, "_preprocess", read_in="execute_model"),
    Hook(_RUNNER, "_model_forward", read_in="execute_model"),
    Hook(_RUNNER, "_sample", read_in="sample_tokens"),
    # Read to find each request's rows in a step.
    Hook(_RUNNER, "get_model", ()),
    Hook(_RUNNER, "query_start_loc", read_in="_prepare_inputs"),
    Hook(_RUNNER, "requests", read_in="_update_states"),
    Hook(_RUNNER, "input_batch", read_in="_update_states"),
    Hook(_RUNNER, "max_num_tokens", read_in="__init__"),
    Hook(_RUNNER, "max_num_reqs", read_in="__init__"),
    Hook(_RUNNER, "device", read_in="__init__"),
    Hook(_RUNNER, "dtype", read_in="__init__"),
    Hook(_RUNNER, "model_config", read_in="__init__"),
    Hook("vllm.config.model:ModelConfig", "get_hidden_size", ()),
    Hook(_RUNNER, "enable_prompt_embeds", read_in="_preprocess"),
    Hook(_RUNNER, "supports_mm_inputs", read_in="_preprocess"),
    Hook(_BATCH, "num_computed_tokens_cpu", read_in="__init__"),
    Hook(_RUNNER, "discard_request_mask", read_in="_bookkeeping_sync"),
    Hook(_BATCH, "req_ids"),
    Hook(_BATCH, "num_reqs"),
    Hook(_BATCH, "req_id_to_index", read_in="__init__"),
    Hook(_BATCH, "generators", read_in="__init__"),
    Hook(_STATE, "generator"),
    Hook(_STATE, "mrope_positions"),
    Hook(_STATE, "mrope_position_delta"),
    Hook(_NEW, "req_id"),
    Hook(_NEW, "prompt_len"),
    Hook(_NEW, "mm_features"),
    Hook(_NEW, "sampling_params"),
    Hook(_NEW, "num_computed_tokens"),
    Hook(_CACHED, "resumed_req_ids"),
    Hook(_STEP, "scheduled_new_reqs"),
    Hook(_STEP, "scheduled_cached_reqs"),
    Hook("vllm.multimodal.inputs:PlaceholderRange", "offset"),
    Hook("vllm.multimodal.inputs:PlaceholderRange", "length"),
    Hook("vllm.multimodal.inputs:PlaceholderRange", "is_embed"),
    # Overridden: the methods in which a worker builds its model runner.
    Hook("vllm.v1.worker.gpu_worker:Worker", "_make_model_runner", ()),
    Hook("vllm.v1.worker.gpu_worker:Worker", "_make_model_runner", read_in="_init_workspace_and_model_runner"),
    Hook("vllm.v1.worker.gpu_worker:Worker", "device", read_in="init_device"),
    Hook("vllm.v1.worker.worker_base:WorkerBase", "vllm_config", read_in="__init__"),
    Hook("vllm.v1.worker.cpu_worker:CPUWorker", "init_device", ()),
    Hook("vllm.v1.worker.cpu_worker:CPUWorker", "model_runner", read_in="init_device"),
    # The engine.
    Hook("vllm.v1.engine.async_llm:AsyncLLM", "collective_rpc", ("method", "timeout", "args", "kwargs")),
    Hook("vllm.v1.engine.async_llm:AsyncLLM", "abort", ("request_id", "internal")),
    Hook("vllm.v1.engine.async_llm:AsyncLLM", "shutdown", ("timeout",)),
    Hook("vllm.v1.engine.async_llm:AsyncLLM", "errored"),
    Hook("vllm.v1.engine.async_llm:AsyncLLM", "model_config", read_in="__init__"),
    Hook("vllm.v1.engine.async_llm:AsyncLLM", "engine_core", read_in="__init__"),
    Hook("vllm.v1.engine.async_llm:AsyncLLM", "renderer", read_in="__init__"),
    Hook("vllm.v1.engine.async_llm:AsyncLLM", "output_handler", read_in="__init__"),
    Hook(
        "vllm.renderers.base:BaseRenderer",
        "render_cmpl_async",
        ("prompts", "tok_params", "prompt_extras", "skip_mm_cache"),
    ),
    Hook("vllm.v1.engine.core_client:BackgroundResources", "ctx"),
    Hook("vllm.v1.engine.core_client:MPClient", "resources", read_in="__init__"),
    Hook("vllm.config.vllm:VllmConfig", "use_v2_model_runner"),
    Hook("vllm.sampling_params:SamplingParams", "skip_reading_prefix_cache"),
    Hook("vllm.sampling_params:SamplingParams", "extra_args"),
)


def moved_hooks(hooks: Sequence[Hook] = HOOKS) -> list[str]:
    """Return one sentence for each hook that the installed vLLM lacks or has in another form."""
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
        owner = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return f"{hook.owner} is gone"
    if hook.read_in is not None:
        method = getattr(owner, hook.read_in, None)
        if method is None:
            return f"{hook.owner}.{hook.read_in} is gone"
        if f"self.{hook.name}" not in inspect.getsource(method):
            return f"{hook.owner}.{hook.read_in} no longer uses self.{hook.name}"
        return None
    fields = {*getattr(owner, "__dataclass_fields__", ()), *getattr(owner, "__struct_fields__", ())}
    if not hasattr(owner, hook.name) and hook.name not in fields:
        return f"{hook.owner}.{hook.name} is gone"
    if hook.parameters is not None:
        parameters = tuple(inspect.signature(getattr(owner, hook.name)).parameters)[1:]
        if parameters != hook.parameters:
            return f"{hook.owner}.{hook.name} takes {parameters}, not {hook.parameters}"
    return None


def register() -> None:
    """Register our model classes with vLLM, and let an engine's process end with its parent.

    vLLM calls this in each of its processes. It imports a model class only when it builds the model. The parent is
    the worker or the engine above this process; its ``engine.ParentThread`` is the thread that the kernel watches.
    """
    from vllm import ModelRegistry

    for model in model_classes():
        if model.architecture not in ModelRegistry.get_supported_archs():
            ModelRegistry.register_model(model.architecture, model.module)
    # The worker's own process calls this too, and is no engine's: it has no multiprocessing parent.
    if (parent := multiprocessing.parent_process()) is not None:
        end_with_parent(parent.pid or 0)
