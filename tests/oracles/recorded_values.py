"""Values of a JSON schema of ``vllm_arguments.json``, for properties of engine arguments."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

_TEXT = st.text("abcdefgh_", min_size=1, max_size=8)
_JSON = st.recursive(st.none() | st.booleans() | st.integers(0, 9) | _TEXT, lambda each: st.lists(each, max_size=2))

# Of arguments with narrower bounds than vLLM's types.
BOUNDED: Mapping[str, st.SearchStrategy[Any]] = {
    "max_model_len": st.integers(16, 1 << 20),
    "max_num_seqs": st.integers(1, 4096),
    "max_num_batched_tokens": st.integers(16, 1 << 20),
    "block_size": st.integers(1, 512),
    "gpu_memory_utilization": st.floats(0.01, 1),
    "kv_cache_memory_bytes": st.integers(1 << 20, 1 << 40),
    "tensor_parallel_size": st.integers(1, 16),
    "limit_mm_per_prompt": st.dictionaries(
        st.sampled_from(["audio", "image", "video"]), st.integers(0, 9) | st.fixed_dictionaries({"count": st.just(1)})
    ),
    "max_loras": st.integers(1, 64),
    "max_cpu_loras": st.integers(1, 64),
    "load_format": st.sampled_from(["auto", "safetensors"]),
    "distributed_executor_backend": st.sampled_from(["mp", "uni"]),
    "generation_config": st.sampled_from(["auto", "vllm", "/models/a"]),
    "mm_encoder_fp8_scale_path": st.just("/models/a/scales.json"),
    "model_loader_extra_config": st.just({"enable_multithread_load": True, "num_threads": 4}),
    "compilation_config": st.just({"mode": "NONE", "backend": "inductor", "pass_config": {"eliminate_noops": False}}),
    "quantization_config": st.just({"linear": {"weight": "mxfp8"}, "ignore": ["lm_head"]}),
    "structured_outputs_config": st.just({"backend": "xgrammar"}),
}


def values(name: str, schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Values of an argument that a stage config may give."""
    return BOUNDED[name] if name in BOUNDED else of_schema(schema)


def of_schema(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    if "anyOf" in schema:
        return st.one_of([of_schema(each) for each in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "const" in schema:
        return st.just(schema["const"])
    least, most = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1), schema.get("maximum", 1 << 20)
    match schema.get("type"):
        case "string":
            return _TEXT
        case "integer":
            return st.integers(least, most)
        case "number":
            return st.floats(least, most)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "array":
            return st.lists(of_schema(schema.get("items", {})), min_size=schema.get("minItems", 0), max_size=3)
        case "object" if "properties" in schema:
            parts = {name: of_schema(each) for name, each in schema["properties"].items()}
            return st.fixed_dictionaries({}, optional=parts)
        case "object":
            return st.dictionaries(_TEXT, of_schema(schema.get("additionalProperties", {})), max_size=3)
    return _JSON
