"""The engine settings of a pooling stage: those of every stage on vLLM, but for what would spoil its rows."""

import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from workers.runners.on_vllm.refused_arguments import REFUSED
from workers.runners.pooling.engine_settings import POOLING_REFUSED, PoolingEngine


def problems(**given: Any) -> dict[str, str]:
    """Dotted field → message."""
    with pytest.raises(ValidationError) as caught:
        PoolingEngine.model_validate(given)
    return {".".join(map(str, each["loc"])): each["msg"] for each in caught.value.errors()}


@pytest.mark.parametrize("name", sorted(set(POOLING_REFUSED) - set(REFUSED)))
def test_what_would_spoil_rows_is_refused_whatever_its_value(name: str) -> None:
    for value in (None, True, 4):
        assert problems(**{name: value}) == {name: POOLING_REFUSED[name]}
        assert problems(cpu={name: value}) == {f"cpu.{name}": POOLING_REFUSED[name]}


def test_what_no_stage_on_vllm_may_give_no_pooling_stage_may() -> None:
    assert POOLING_REFUSED.items() >= REFUSED.items()


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        ({"max_model_len": 512, "max_num_batched_tokens": 511}, "max_num_batched_tokens", "511 is less than max_model"),
        ({"max_model_len": 512, "cuda": {"max_num_batched_tokens": 100}}, "cuda.max_num_batched_tokens", "100 is less"),
        ({"max_num_batched_tokens": 100, "cpu": {"max_model_len": 128}}, "max_num_batched_tokens", "100 is less"),
        ({"max_num_seqs": 32, "max_num_batched_tokens": 16}, "max_num_batched_tokens", "16 is less than max_num_seqs"),
        ({"worker_cls": "os.system"}, "worker_cls", "the runner chooses the worker"),
        ({"cpu": {"pooler_config": {}}}, "cpu.pooler_config", "the stage's kind says what it makes"),
        ({"max_num_seqs": "8"}, "max_num_seqs", "Input should be a valid integer"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_field(given: dict[str, Any], field: str, message: str) -> None:
    found = problems(**given)
    assert list(found) == [field]
    assert message in found[field]


def test_each_kind_of_host_has_its_own() -> None:
    engine = PoolingEngine.model_validate(
        {"dtype": "bfloat16", "max_model_len": 512, "cpu": {"dtype": "float32", "max_num_batched_tokens": 512}}
    )
    assert engine.vllm_args("cuda") == {"dtype": "bfloat16", "max_model_len": 512}
    assert engine.on("cpu").vllm_args("cpu") == {
        "dtype": "float32",
        "max_model_len": 512,
        "max_num_batched_tokens": 512,
    }
    assert engine.decisive() == {"dtype": "bfloat16", "max_model_len": 512, "cpu": {"dtype": "float32"}}
    shares = engine.with_memory_shares("cpu", gpu_memory_utilization=0.4, kv_cache_memory_bytes=1 << 21)
    assert isinstance(shares, PoolingEngine)
    assert shares.vllm_args("cpu")["kv_cache_memory_bytes"] == 1 << 21


def test_neither_torch_nor_vllm_is_loaded() -> None:
    modules = "workers.runners.pooling.engine_settings, workers.runners.pooling.parameters"
    code = f"import sys, {modules}; print(*{{'torch', 'vllm', 'numpy'}} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
