"""The engine arguments of vLLM that a stage config may not give, each with its reason, and the bounds of some others.

An argument is refused because the runner sets it itself (``OURS``), because it would run code, open pickles or fetch
or write files (``UNSAFE``), or because stages on vLLM do not work with it (``UNSUPPORTED``). A runner may refuse more.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from omni_jobs.pipelines.yaml_source import FieldPath

_CHECKPOINT = "a stage runs one checkpoint, the local directory that its model names: nothing is fetched"
_IMPORTS = "it names code to import, and an engine runs only the installed vLLM's code and that of installed families"
_MEDIA = "the worker decodes a job's media itself, and vLLM opens no file and no address for it"
_CONNECTOR = (
    "KV cache and encoder outputs from elsewhere are not supported: captured hidden states need every token computed "
    "in this engine"
)
_SPECULATIVE = "it is speculative_config's: give its method, model and num_speculative_tokens there"
_DATA_PARALLEL = "data parallelism is not supported: start more workers of the stage instead"
_ONE_HOST = "an engine on several hosts is not supported: start a worker of the stage on each host"
_SLEEP = "sleep mode is not supported: an engine runs as long as its worker; stop the worker to free its memory"
_KIND = "the stage's kind says what it makes: tokens (ar) or a row for each token of its prompt (pooling)"
_STATISTICS = "vLLM keeps the statistics that it keeps by itself, and OMNI_JOBS_METRICS_PORT shows them"
_OUTPUTS = "a stage does not return this output of the engine"
_LOG = "the worker writes the log, and prompts and addresses do not belong into it"


def refused_for(reason: str, names: str) -> dict[str, str]:
    """Return each of the names, which spaces part, with the one reason why it is refused."""
    return dict.fromkeys(names.split(), reason)


OURS: Mapping[str, str] = {
    "model": "the stage's model names the checkpoint (--model PATH or OMNI_JOBS_MODELS)",
    "tokenizer": "prompts are rendered with the checkpoint's own tokenizer",
    "hf_config_path": "the checkpoint's own config.json is read",
    "skip_tokenizer_init": "the component decides whether it has a tokenizer",
    "served_model_name": "the engine is not served: jobs name the pipeline",
    **refused_for(_KIND, "runner convert pooler_config"),
    "device_ids": "the stage's device picks the GPU: cuda:1",
    "enable_prompt_embeds": "it follows from what the pipeline accepts and from the component",
    "enable_mm_embeds": "a job's media come as media; prompt_embeds are the pipeline's to accept",
    "worker_cls": "the runner chooses the worker: an AR stage has its own, by which it captures hidden states",
    "worker_extension_cls": "the runner chooses the worker: an AR stage has its own, which captures hidden states",
    "mm_processor_cache_gb": "it is 0, because vLLM's two caches of media diverge when a request is rendered early",
    "mm_processor_cache_type": "vLLM's cache of media is off (mm_processor_cache_gb)",
    "mm_shm_cache_max_object_size_mb": "vLLM's cache of media is off (mm_processor_cache_gb)",
    "media_io_kwargs": _MEDIA,
    "shutdown_timeout": "the runner ends its engine itself",
    "_api_process_count": "one process uses the engine: the stage's worker",
    "_api_process_rank": "one process uses the engine: the stage's worker",
    **refused_for(
        _STATISTICS,
        "disable_log_stats aggregate_engine_logging show_hidden_metrics_for_version kv_cache_metrics "
        "kv_cache_metrics_sample custom_histogram_buckets cudagraph_metrics enable_mfu_metrics "
        "enable_logging_iteration_details enable_mm_processor_stats per_request_spec_decode_metrics",
    ),
}

UNSAFE: Mapping[str, str] = {
    "trust_remote_code": "it would run code that lies in the checkpoint; install the model as a family instead",
    "model_class_overrides": _IMPORTS + "; install the model as a family instead",
    "logits_processors": _IMPORTS,
    "scheduler_cls": _IMPORTS,
    "io_processor_plugin": _IMPORTS,
    "reasoning_parser_plugin": _IMPORTS,
    "structured_outputs_config.reasoning_parser_plugin": _IMPORTS,
    "ec_manager_config": _IMPORTS,
    "compilation_config.inductor_passes": _IMPORTS,
    "compilation_config.cache_dir": "compiled code is read from there; VLLM_CACHE_ROOT sets the cache of all engines",
    "compilation_config.debug_dump_path": "an engine writes no files beside its caches; VLLM_DEBUG_DUMP_PATH sets it",
    "additional_config": "it is read by platform plug-ins, which vLLM loads beside us and nothing checks",
    "allowed_local_media_path": _MEDIA,
    "allowed_media_domains": _MEDIA,
    "default_mm_loras": "it would be applied without being asked for; list it in lora_modules, and a job names it",
    **refused_for(
        _CHECKPOINT,
        "model_weights download_dir revision code_revision tokenizer_revision hf_token ignore_patterns",
    ),
    "pt_load_map_location": "it is for weights in pickles; convert them to safetensors",
    "mm_encoder_fp8_scale_save_path": "an engine writes no files beside its caches",
    **refused_for(
        "a profile is written to files, and nothing starts one", "profiler_config enable_layerwise_nvtx_tracing"
    ),
    **refused_for(
        _LOG, "otlp_traces_endpoint collect_detailed_traces log_config_file logging_config enable_log_requests"
    ),
    "kv_events_config": "the engine would open a port on which anyone may read the prompts' tokens",
    "weight_transfer_config": "the engine would take weights from another process; a stage's are its checkpoint's",
    "watermark_config": "its key is a secret, and a stage config holds none",
}

UNSUPPORTED: Mapping[str, str] = {
    **refused_for(_SPECULATIVE, "spec_method spec_model spec_tokens"),
    "diffusion_config": (
        "diffusion language models are not supported: captured hidden states and additional information are kept by "
        "position, and a token that is drawn again would leave the wrong ones"
    ),
    "prefill_context_parallel_size": (
        "context parallelism is not supported: it spreads a prompt over ranks, and hidden states are captured on one"
    ),
    **refused_for(
        _DATA_PARALLEL,
        "data_parallel_size data_parallel_rank data_parallel_start_rank data_parallel_size_local data_parallel_address "
        "data_parallel_rpc_port data_parallel_hybrid_lb data_parallel_external_lb data_parallel_multi_port_external_lb "
        "data_parallel_backend enable_elastic_ep elastic_ep_max_dp_size dp_sync_interval "
        "disable_nccl_for_dp_synchronization",
    ),
    **refused_for(_ONE_HOST, "master_addr master_port nnodes node_rank ray_workers_use_nsight"),
    **refused_for(_CONNECTOR, "kv_transfer_config ec_transfer_config kv_offloading_size kv_offloading_backend"),
    "mm_encoder_only": "a stage runs a language model, and the encoders of media alone are none",
    "tokens_only": "an engine has its checkpoint's tokenizer, unless the component says otherwise",
    **refused_for(
        _OUTPUTS,
        "enable_return_routed_experts aux_output_config return_sampling_mask max_logprobs logprobs_mode "
        "enable_trace_replay",
    ),
    **refused_for(
        _SLEEP,
        "enable_sleep_mode sleep_mode_offload_cudagraph sleep_preserve_parameter_names enable_cumem_allocator "
        "enable_nccl_comm_suspend",
    ),
    **refused_for(
        "the worker starts an engine that died anew; vLLM's own recovery is for engines on several hosts",
        "enable_fault_tolerance fault_tolerance_config",
    ),
    **refused_for(
        "the stage's slots bound what waits in the engine; the rest waits in the queue",
        "max_num_queued_reqs max_num_queued_tokens",
    ),
}

REFUSED: Mapping[str, str] = {**OURS, **UNSAFE, **UNSUPPORTED}
"""Argument, or a dotted field within one → the reason why no stage config may give it."""

ALLOWED_TEXT: Mapping[str, tuple[str, str]] = {
    "load_format": (
        "auto|hf|safetensors|fastsafetensors|instanttensor|mistral|sharded_state|dummy",
        "weights are read from local safetensors files: other formats are pickles or are fetched, or are plug-ins",
    ),
    "distributed_executor_backend": (
        "mp|uni",
        "an engine runs on one host, in several processes (mp) or one (uni); other names are Ray's or code to import",
    ),
    "structured_outputs_config.backend": (
        "xgrammar",
        "an engine has one such library: vLLM's auto takes that of its first job, so that others' answers follow it",
    ),
    "compilation_config.backend": ("|eager|inductor", _IMPORTS),
    "generation_config": ("auto|vllm|/.+", "only auto, vllm and an absolute path are not fetched"),
    "mm_encoder_fp8_scale_path": ("/.+", "only an absolute path is the same wherever the worker starts"),
}
"""Argument, or a dotted field within one → the pattern of its whole text, and the reason."""

NUMBERS_ONLY: Mapping[str, str] = {
    "compilation_config.inductor_compile_config": "texts in it name compilers, passes and files",
    "model_loader_extra_config": "texts in it name files and addresses to load from",
}
"""A mapping in which only numbers, true and false may stand → the reason."""

UNSAFE_KEYS: Mapping[str, str] = {
    "auto_map": "it names code in the checkpoint, and none of that is run",
    "custom_pipelines": "it names code in the checkpoint, and none of that is run",
    "trust_remote_code": UNSAFE["trust_remote_code"],
    **refused_for(_CHECKPOINT, "_name_or_path name_or_path code_revision token hf_token"),
}
"""A key at any depth of an argument's value, ``hf_overrides`` for example → the reason why it is refused."""

_MAPPINGS = frozenset(
    [each.rpartition(".")[0] for each in (*REFUSED, *ALLOWED_TEXT) if "." in each] + list(NUMBERS_ONLY)
)
"""What must be a mapping, because parts of it are refused and vLLM may read them from a text too."""


def refused_parts(at: FieldPath, value: Any, refused: Mapping[str, str]) -> Iterator[tuple[FieldPath, str]]:
    """Yield (where, why) for each part of an argument's value that is refused; ``at``: where the value stands.

    ``refused``: the runner's refused arguments, ``REFUSED`` among them, each with its reason.
    """
    dotted = ".".join(map(str, at))
    if dotted in refused:
        yield at, refused[dotted]
    elif len(at) > 1 and at[-1] in UNSAFE_KEYS:
        yield at, UNSAFE_KEYS[str(at[-1])]
    elif dotted in ALLOWED_TEXT and value is not None:
        pattern, reason = ALLOWED_TEXT[dotted]
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            yield at, f"{value!r} is refused: {reason}"
    elif dotted in _MAPPINGS and not isinstance(value, Mapping | None):
        yield at, "Input should be a mapping"
    elif isinstance(value, Mapping):
        for key, each in value.items():
            if dotted in NUMBERS_ONLY and not isinstance(each, bool | int | float):
                yield (*at, key), f"only numbers, true and false: {NUMBERS_ONLY[dotted]}"
            else:
                yield from refused_parts((*at, key), each, refused)
    elif isinstance(value, list):
        for n, each in enumerate(value):
            yield from refused_parts((*at, n), each, refused)
