"""vLLM's own types of its engine arguments, and what our tables say of them."""

import dataclasses
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
from vllm.config.quantization import QuantizationConfigArgs
from vllm.engine.arg_utils import AsyncEngineArgs

from omni_jobs.errors import ConfigError
from workers.runners.on_vllm.engine_settings import DECISIVE, VllmArguments
from workers.runners.on_vllm.refused_arguments import ALLOWED_TEXT, NUMBERS_ONLY, REFUSED
from workers.runners.pooling.engine_settings import POOLING_REFUSED
from workers.vllm_hooks.engine import Engine
from workers.vllm_hooks.engine_arguments import check_engine_arguments, wrong_arguments

ARGUMENTS = {each.name: each for each in dataclasses.fields(AsyncEngineArgs)}
TYPES = get_type_hints(AsyncEngineArgs, localns={"QuantizationConfigArgs": QuantizationConfigArgs})

TELLING = {"path", "plugin", "url", "addr", "address", "port", "dir", "cls", "class", "trust", "remote", "code"}
TELLING |= {"module", "import", "script", "file", "socket", "endpoint", "key", "secret", "hf", "extra", "spec"}

KNOWN_HARMLESS = {
    "hf_overrides",  # a mapping, of which keys are refused at any depth
    "max_lora_cls_labels",  # a number
    "mm_encoder_fp8_scale_path",  # an absolute path of numbers, which is read
    "model_loader_extra_config",  # a mapping of numbers
}


def parts(name: str, annotation: Any) -> Iterator[str]:
    """Yield the dotted names of an argument and of the fields of vLLM's configs in it."""
    yield name
    for each in (annotation, *get_args(annotation)):
        if dataclasses.is_dataclass(each):
            for field in dataclasses.fields(each):
                if field.init:
                    yield from parts(f"{name}.{field.name}", field.type)


EVERY_PART = {part for name, annotation in TYPES.items() if name in ARGUMENTS for part in parts(name, annotation)}


def test_our_tables_name_arguments_that_vllm_has() -> None:
    assert {*REFUSED, *ALLOWED_TEXT, *NUMBERS_ONLY, *POOLING_REFUSED} - EVERY_PART == {"lora_modules", "tool_parser"}
    assert set(VllmArguments.model_fields) <= set(ARGUMENTS)
    assert not set(DECISIVE) & set(REFUSED)


def test_the_digest_takes_vllm_s_defaults_for_unset() -> None:
    own: dict[str, Any] = {}
    objects = {"mamba_config", "structured_outputs_config"}
    for name in set(DECISIVE) - objects:
        made = ARGUMENTS[name].default_factory
        own[name] = ARGUMENTS[name].default if made is dataclasses.MISSING else made()
    assert own == {name: default for name, default in DECISIVE.items() if name not in objects}


def test_an_argument_whose_name_tells_of_files_code_or_addresses_is_refused_or_known() -> None:
    """After a change of vLLM's version, whoever sees this fail reads what the new argument does."""
    refused = {name for name in EVERY_PART if any(name == each or name.startswith(f"{each}.") for each in REFUSED)}
    told = {name for name in EVERY_PART - refused if TELLING & set(name.rpartition(".")[2].split("_"))}
    assert told == KNOWN_HARMLESS


@pytest.mark.parametrize(
    ("name", "value", "field", "message"),
    [
        ("max_num_seqs", "many", "max_num_seqs", "refuses the value: .*valid integer"),
        ("kv_cache_dtype", "fp9", "kv_cache_dtype", "refuses the value: Input should be 'auto'"),
        ("compilation_config", {"modes": 3}, "compilation_config.modes", "refuses the value: Unexpected keyword"),
        ("compilation_config", {"pass_config": {"fuse": 1}}, "compilation_config.pass_config.fuse", "Unexpected"),
        ("compilation_config", {"custom_ops": ["none", "all"]}, "compilation_config", "refuses the value: "),
        ("compilation_config", {"mode": "nonsense"}, "compilation_config.mode", "refuses the value: "),
        ("attention_config", {"backend": "NOTHING"}, "attention_config.backend", "refuses the value: "),
        ("quantization_config", {"linear": {"weight": ["fp8"]}}, "quantization_config", "value: expected str"),
        ("lora_dtype", ["float16"], "lora_dtype", "refuses the value"),
        ("quantisation", "fp8", "quantisation", "no such argument; did you mean quantization or quantization_config?"),
        ("smell", 8, "smell", "has no such argument$"),
    ],
)  # fmt: skip
def test_what_vllm_s_types_refuse_is_told_by_name(name: str, value: Any, field: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Engine.start({"model": "/nowhere", name: value})
    assert caught.value.field == f"engine.{field}"


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        check_engine_arguments({"smell": 1, "max_num_seqs": 4, "compilation_config": {"modes": 3, "levels": 1}})
    fields = [each.field for each in (caught.value, *caught.value.more)]
    assert fields == ["engine.smell", "engine.compilation_config.modes", "engine.compilation_config.levels"]


def test_settings_of_a_stage_are_checked_for_each_kind_of_host() -> None:
    engine = {
        "dtype": "floaty",
        "quantization": None,
        "lora_modules": {"a": "/loras/a"},
        "cpu": {"dtype": "float32", "max_seqs": 8, "lora_modules": {}},
        "cuda": {"kv_cache_dtype": "fp9", "cpu_offload_gb": 1},
    }
    found = dict(wrong_arguments(engine, own=frozenset({"lora_modules"})))
    assert list(found) == [("dtype",), ("cpu", "max_seqs"), ("cuda", "kv_cache_dtype")]
    assert found["cpu", "max_seqs"].endswith("has no such argument; did you mean max_num_seqs?")


def test_what_vllm_refuses_beyond_types() -> None:
    with pytest.raises(ConfigError, match=r"vLLM refuses these engine arguments: (.|\n)*nonsense"):
        Engine.start({"model": "/nowhere", "quantization_config": {"linear": {"weight": "nonsense"}}})


def test_names_of_enumerations_become_members() -> None:
    args = {"attention_backend": "flash_attn", "mamba_backend": "TRITON", "optimization_level": "O1", "max_num_seqs": 2}
    checked = check_engine_arguments(args)
    assert [checked[name].name for name in ("attention_backend", "mamba_backend")] == ["FLASH_ATTN", "TRITON"]
    assert (int(checked["optimization_level"]), checked["max_num_seqs"]) == (1, 2)
