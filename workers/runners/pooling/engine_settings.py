"""``PoolingEngine``: the ``engine`` of a pooling stage in a stage config: vLLM's engine arguments."""

from collections.abc import Mapping
from typing import Any, ClassVar

from omni_jobs.pipelines.engine_settings import Device
from workers.runners.on_vllm.engine_settings import VllmArguments, VllmEngine
from workers.runners.on_vllm.refused_arguments import REFUSED, refused_for

_WHOLE = (
    "a prompt is computed in one step, because vLLM would return the first rows twice for one that was preempted "
    "between two chunks: give max_num_batched_tokens of at least max_model_len"
)

POOLING_REFUSED: Mapping[str, str] = {
    **REFUSED,
    **refused_for(_WHOLE, "enable_chunked_prefill long_prefill_token_threshold long_prefill_token_threshold_adaptive"),
    "kv_sharing_fast_prefill": "its last layers leave out tokens of a prompt, and each has to give its row",
    "enable_prefix_caching": "tokens from the cache are not computed, and each token of a prompt has to give its row",
    **refused_for("the component decides which media its prompts hold", "language_model_only limit_mm_per_prompt"),
    **refused_for(
        "a pooling stage runs no LoRA adapters",
        "lora_modules enable_lora max_loras max_lora_rank max_cpu_loras lora_dtype lora_target_modules "
        "fully_sharded_loras enable_tower_connector_lora enable_moe_shared_loras specialize_active_lora",
    ),
    "pipeline_parallel_size": "a prompt is one step, in which the ranks of a pipeline would wait for each other",
    "speculative_config": "a pooling stage makes no tokens that could be guessed",
    "tool_parser": "a pooling stage makes no text",
}
"""Argument, or a dotted field within one → the reason why no pooling stage may give it."""


class PoolingArguments(VllmArguments):
    """Engine arguments of vLLM; each is None where vLLM or the checkpoint decides."""

    refused: ClassVar[Mapping[str, str]] = POOLING_REFUSED


class PoolingEngine(PoolingArguments, VllmEngine):
    """Engine arguments of vLLM by their own names; under ``cpu`` and ``cuda`` those that replace them on such hosts."""

    cpu: PoolingArguments | None = None
    cuda: PoolingArguments | None = None

    def _check_on(self, device: Device, arguments: Mapping[str, Any]) -> None:
        tokens, length = arguments.get("max_num_batched_tokens"), arguments.get("max_model_len")
        if tokens is not None and length is not None and tokens < length:
            raise self._problem(
                device, "max_num_batched_tokens", f"{tokens} is less than max_model_len, {length}: {_WHOLE}"
            )
