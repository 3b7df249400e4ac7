"""vLLM's own types of its engine arguments, and the list recorded from them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_jobs.errors import ConfigError
from tests.oracles.recorded_values import values
from workers.runners.on_vllm.record_arguments import as_text
from workers.runners.on_vllm.recorded_arguments import RECORDED_ARGUMENTS, recorded_arguments
from workers.runners.on_vllm.refused_arguments import REFUSED
from workers.vllm_hooks.engine import Engine
from workers.vllm_hooks.engine_arguments import check_engine_arguments, describe_engine_arguments

# vLLM's configs demand more than the types of their fields: a backend that is installed, two fields that fit.
_CONFIGS = {name for name, each in recorded_arguments().items() if "'properties'" in str(each["type"])}


def test_the_recorded_list_is_the_installed_vllm_s() -> None:
    """After a change of vLLM's version: python -m workers.runners.on_vllm.record_arguments."""
    assert RECORDED_ARGUMENTS.read_text(encoding="utf-8") == as_text(describe_engine_arguments())


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_vllm_takes_what_the_recorded_list_takes(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(set(recorded_arguments()) - set(REFUSED) - _CONFIGS)))
    value = data.draw(values(name, recorded_arguments()[name]["type"]))
    if value is not None:
        assert list(check_engine_arguments({name: value})) == [name]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_num_seqs", "many", "refuses the value: .*valid integer"),
        ("kv_cache_dtype", "fp9", "refuses the value: Input should be 'auto'"),
        ("compilation_config", {"modes": 3}, "refuses the value: modes: "),
        ("compilation_config", {"custom_ops": ["none", "all"]}, "refuses the value: "),
        ("compilation_config", {"mode": "nonsense"}, "refuses the value: "),
        ("attention_config", {"backend": "NOTHING"}, "refuses the value: "),
        ("quantization_config", {"linear": {"weight": ["fp8"]}}, "refuses the value: expected str"),
        ("lora_dtype", ["float16"], "refuses the value"),
        ("max_sequences", 8, "has no such argument"),
    ],
)
def test_what_vllm_s_types_refuse_is_told_by_name(name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Engine.start({"model": "/nowhere", name: value})
    assert caught.value.field == f"engine.{name}"


def test_what_vllm_refuses_beyond_types() -> None:
    with pytest.raises(ConfigError, match=r"vLLM refuses these engine arguments: (.|\n)*nonsense"):
        Engine.start({"model": "/nowhere", "quantization_config": {"linear": {"weight": "nonsense"}}})


def test_names_of_enumerations_become_members() -> None:
    args = {"attention_backend": "flash_attn", "mamba_backend": "TRITON", "optimization_level": "O1", "max_num_seqs": 2}
    checked = check_engine_arguments(args)
    assert [checked[name].name for name in ("attention_backend", "mamba_backend")] == ["FLASH_ATTN", "TRITON"]
    assert (int(checked["optimization_level"]), checked["max_num_seqs"]) == (1, 2)
