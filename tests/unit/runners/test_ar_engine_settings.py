"""The engine settings of an AR stage: which of vLLM's arguments it takes, per host kind, and what the digest has."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from omni_jobs.pipelines.engine_settings import Device
from workers.runners.ar.engine_settings import ArEngine
from workers.runners.ar.parameters import ArParameters
from workers.runners.on_vllm.refused_arguments import ALLOWED_TEXT, NUMBERS_ONLY, REFUSED


def engine(**given: Any) -> ArEngine:
    return ArEngine.model_validate(given)


def problems(**given: Any) -> dict[str, str]:
    """Dotted field → message."""
    with pytest.raises(ValidationError) as caught:
        engine(**given)
    return {".".join(map(str, each["loc"])): each["msg"] for each in caught.value.errors()}


NGRAM = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.floats(0, 9) | st.text("ab", max_size=3),
    lambda each: st.lists(each, max_size=2) | st.dictionaries(st.text("ab", max_size=3), each, max_size=2),
)


@given(st.text("abcdefgh_", min_size=1), _JSON)
def test_any_other_name_is_left_to_vllm_with_its_value(name: str, value: Any) -> None:
    expected = {} if value is None else {name: value}
    on_both = engine(**{name: value})
    assert on_both.vllm_args("cpu") == on_both.vllm_args("cuda") == on_both.on("cpu").vllm_args("cpu") == expected
    on_gpus = engine(cuda={name: value})
    assert (on_gpus.vllm_args("cpu"), on_gpus.vllm_args("cuda")) == ({}, expected)
    assert on_both.decisive() == on_gpus.decisive() == {}


@given(st.sampled_from(sorted(name for name in REFUSED if "." not in name)), _JSON)
def test_a_refused_argument_is_refused_whatever_its_value(name: str, value: Any) -> None:
    assert len(REFUSED[name]) > 20
    assert problems(**{name: value}) == {name: REFUSED[name]}
    assert problems(cpu={name: value}) == {f"cpu.{name}": REFUSED[name]}


@pytest.mark.parametrize("name", sorted(set(ALLOWED_TEXT) | set(NUMBERS_ONLY) | {"structured_outputs_config"}))
@pytest.mark.parametrize("value", ["{}", ["eager"], 3], ids=repr)
def test_what_vllm_may_read_from_another_type_is_refused_unread(name: str, value: Any) -> None:
    """A mapping of which parts are refused, written as a text, would pass by the refusals."""
    argument, _, part = name.partition(".")
    found = problems(**{argument: {part: value} if part else value})
    assert list(found) == [name]
    assert "is refused: " in found[name] or found[name] == "Input should be a mapping"


@pytest.mark.parametrize(
    ("given_settings", "field", "message"),
    [
        ({"trust_remote_code": True}, "trust_remote_code", "it would run code that lies in the checkpoint"),
        ({"worker_cls": "os.system"}, "worker_cls", "the runner chooses the worker: an AR stage has its own"),
        ({"spec_method": "ngram"}, "spec_method", "it is speculative_config's: give its method"),
        ({"speculative_config": {**NGRAM, "method": "eagle"}}, "speculative_config.method", "be 'ng"),
        ({"speculative_config": {"method": "mtp"}}, "speculative_config.num_speculative_tokens", "Field required"),
        ({"speculative_config": {"method": "mtp", "num_speculative_tokens": 33}},
         "speculative_config.num_speculative_tokens", "less than or equal to 32"),
        ({"speculative_config": {"method": "mtp", "num_speculative_tokens": 1, "prompt_lookup_max": 2}},
         "speculative_config", "are for ngram, not for mtp"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 1}},
         "speculative_config", "ngram needs prompt_lookup_max"),
        ({"speculative_config": {**NGRAM, "prompt_lookup_min": 4}}, "speculative_config", "4, is more than prom"),
        ({"speculative_config": {**NGRAM, "model": "/models/draft"}}, "speculative_config", "no other method takes it"),
        ({"speculative_config": {"method": "draft_model", "num_speculative_tokens": 1}},
         "speculative_config", "draft_model needs it"),
        ({"speculative_config": {"method": "draft_model", "num_speculative_tokens": 1, "model": "some/draft"}},
         "speculative_config.model", "pattern"),
        ({"cpu": {"speculative_config": {**NGRAM, "revision": "main"}}}, "cpu.speculative_config.revision", "Extra"),
        ({"async_scheduling": True, "cuda": {"speculative_config": NGRAM}}, "async_scheduling", "is not begun before"),
        ({"cpu": {"data_parallel_size": 2}}, "cpu.data_parallel_size", "data parallelism is not supported: start more"),
        ({"cpu": {"cpu": {}}}, "cpu.cpu", "stands beside cpu and cuda, not in them"),
        ({"cpu": {"lora_modules": {}}}, "cpu.lora_modules", "stands beside cpu and cuda, not in them"),
        ({"hf_overrides": {"text_config": {"auto_map": {"AutoModel": "a--b.C"}}}},
         "hf_overrides.text_config.auto_map", "it names code in the checkpoint"),
        ({"hf_overrides": {"parts": [{"trust_remote_code": True}]}},
         "hf_overrides.parts.0.trust_remote_code", "it would run code"),
        ({"mm_processor_kwargs": {"trust_remote_code": True}}, "mm_processor_kwargs.trust_remote_code", "it would run"),
        ({"compilation_config": {"backend": "os.system"}}, "compilation_config.backend", "'os.system' is refused: it"),
        ({"compilation_config": {"inductor_passes": {"a": "os.system"}}},
         "compilation_config.inductor_passes", "it names code to import"),
        ({"compilation_config": {"cache_dir": "/tmp/c"}}, "compilation_config.cache_dir", "compiled code is read from"),
        ({"compilation_config": {"inductor_compile_config": {"cpp.cxx": "/tmp/evil"}}},
         "compilation_config.inductor_compile_config.cpp.cxx", "only numbers, true and false: texts in it name"),
        ({"compilation_config": {"inductor_compile_config": {"a": ["/tmp/evil"]}}},
         "compilation_config.inductor_compile_config.a", "only numbers, true and false"),
        ({"structured_outputs_config": {"reasoning_parser_plugin": "a.py"}},
         "structured_outputs_config.reasoning_parser_plugin", "it names code to import"),
        ({"model_loader_extra_config": {"qlora_adapter_name_or_path": "a/b"}},
         "model_loader_extra_config.qlora_adapter_name_or_path", "only numbers, true and false"),
        ({"load_format": "pt"}, "load_format", "'pt' is refused: weights are read from local safetensors"),
        ({"load_format": "safetensors\nruns"}, "load_format", "is refused"),
        ({"generation_config": "someone/else"}, "generation_config", "only auto, vllm and an absolute path"),
        ({"distributed_executor_backend": "ray"}, "distributed_executor_backend", "'ray' is refused: an engine runs"),
        ({"compilation_config": "{}"}, "compilation_config", "Input should be a mapping"),
        ({"enforce_eager": {1, 2}}, "enforce_eager", "a finite number, or a list or mapping"),
        ({"max_num_seqs": "8"}, "max_num_seqs", "Input should be a valid integer"),
        ({"max_num_seqs": 0}, "max_num_seqs", "greater than or equal to 1"),
        ({"max_num_seqs": 4097}, "max_num_seqs", "less than or equal to 4096"),
        ({"max_model_len": 15}, "max_model_len", "greater than or equal to 16"),
        ({"max_model_len": True}, "max_model_len", "Input should be a valid integer"),
        ({"gpu_memory_utilization": 0}, "gpu_memory_utilization", "greater than 0"),
        ({"gpu_memory_utilization": 1.01}, "gpu_memory_utilization", "less than or equal to 1"),
        ({"cpu_offload_gb": float("nan")}, "cpu_offload_gb", "finite"),
        ({"kv_cache_memory_bytes": (1 << 20) - 1}, "kv_cache_memory_bytes", "greater than or equal to 1048576"),
        ({"limit_mm_per_prompt": {"image": -1}}, "limit_mm_per_prompt.image", "an integer from 0 on or a mapping"),
        ({"limit_mm_per_prompt": {"smell": 1}}, "limit_mm_per_prompt.smell.[key]", "Input should be 'text', 'audio'"),
        ({"hf_overrides": 3}, "hf_overrides", "valid dictionary"),
        ({"lora_modules": {"a": "relative/path"}}, "lora_modules.a", "pattern"),
        ({"lora_modules": {"a/b": "/loras/a"}}, "lora_modules.a/b.[key]", "pattern"),
        ({"lora_modules": {"a": "/loras/a"}, "cpu": {"enable_lora": False}}, "cpu.enable_lora", "there are lora_mod"),
        ({"max_num_seqs": 32, "max_num_batched_tokens": 16}, "max_num_batched_tokens", "16 is less than max_num_seqs"),
        ({"max_num_seqs": 32, "cuda": {"max_num_batched_tokens": 16}}, "cuda.max_num_batched_tokens", "16 is less"),
        ({"max_num_batched_tokens": 16, "cpu": {"max_num_seqs": 32}}, "max_num_batched_tokens", "16 is less than"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_with_its_field_and_the_reason(
    given_settings: dict[str, Any], field: str, message: str
) -> None:
    found = problems(**given_settings)
    assert list(found) == [field]
    assert message in found[field]


def test_all_wrong_names_are_told_at_once() -> None:
    assert set(problems(trust_remote_code=True, worker_cls="a")) == {"trust_remote_code", "worker_cls"}


def test_what_stands_under_a_host_kind_replaces_the_rest_there() -> None:
    both = engine(
        dtype="bfloat16",
        quantization="fp8",
        max_num_seqs=32,
        compilation_config={"mode": 3, "pass_config": {"eliminate_noops": True}},
        cpu={"dtype": "float32", "quantization": None, "enforce_eager": True},
        cuda={"compilation_config": {"mode": 0}},
    )
    assert both.vllm_args("cpu") == {
        "dtype": "float32",
        "max_num_seqs": 32,
        "enforce_eager": True,
        "compilation_config": {"mode": 3, "pass_config": {"eliminate_noops": True}},
    }
    assert both.vllm_args("cuda") == {
        "dtype": "bfloat16",
        "quantization": "fp8",
        "max_num_seqs": 32,
        "compilation_config": {"mode": 0},
    }
    resolved = both.on("cpu")
    assert (resolved.cpu, resolved.cuda) == (None, None)
    assert resolved.vllm_args("cpu") == resolved.vllm_args("cuda") == both.vllm_args("cpu")
    assert resolved.on("cpu") == resolved


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        engine(dtype="auto").cpu = None


def test_memory_by_environment() -> None:
    both = engine(
        gpu_memory_utilization=0.9, cpu={"kv_cache_memory_bytes": 1 << 26}, cuda={"kv_cache_memory_bytes": 1 << 30}
    )

    def shares(device: Device, gpu: float | None, cpu: int | None) -> ArEngine:
        return both.with_memory_shares(device, gpu_memory_utilization=gpu, kv_cache_memory_bytes=cpu)

    assert shares("cuda", None, 1 << 21).vllm_args("cuda") == both.vllm_args("cuda")
    assert shares("cuda", 0.4, 1 << 21).vllm_args("cuda") == {"gpu_memory_utilization": 0.4}
    assert shares("cpu", 0.4, 1 << 21).vllm_args("cpu")["kv_cache_memory_bytes"] == 1 << 21
    assert shares("cpu", 0.4, None).vllm_args("cpu") == both.vllm_args("cpu")
    with pytest.raises(ValidationError, match="greater than or equal"):
        shares("cpu", None, 1)


def test_lora_modules_turn_lora_on() -> None:
    modules = {name: f"/loras/{name}" for name in "abc"}
    assert engine(lora_modules=modules).vllm_args("cpu") == {"enable_lora": True, "max_loras": 3, "max_cpu_loras": 3}
    assert engine(lora_modules=modules, max_loras=4).on("cpu").vllm_args("cpu") == {
        "enable_lora": True,
        "max_loras": 4,
        "max_cpu_loras": 4,
    }
    many = {f"m{n}": f"/loras/{n}" for n in range(20)}
    assert engine(lora_modules=many).vllm_args("cuda") == {"enable_lora": True, "max_loras": 8, "max_cpu_loras": 20}
    assert engine().vllm_args("cuda") == {}


def test_a_job_names_a_module_that_its_stage_lists() -> None:
    stage = engine(lora_modules={"loud": "/loras/loud", "soft": "/loras/soft"})
    assert ArParameters.model_validate({"lora": "loud"}, context=stage).lora == "loud"
    assert ArParameters.model_validate({}, context=stage).lora is None
    for listed, known in ((stage, "loud, soft"), (engine(), "none")):
        with pytest.raises(ValidationError, match=f"lists no LoRA module 'other'; it lists {known}") as caught:
            ArParameters.model_validate({"lora": "other"}, context=listed)
        assert caught.value.errors()[0]["loc"] == ("lora",)


@pytest.mark.parametrize(
    ("given_settings", "decisive"),
    [
        ({}, {}),
        # As before any argument but these two was counted: the digests of existing files stay.
        ({"dtype": "auto", "max_num_seqs": 32, "cpu": {"enforce_eager": True}}, {"dtype": "auto"}),
        ({"dtype": None, "max_model_len": 512, "cpu": {"dtype": "float32"}},
         {"max_model_len": 512, "cpu": {"dtype": "float32"}}),
        ({"dtype": "float32", "cpu": {"dtype": "float32", "max_model_len": None}},
         {"dtype": "float32", "cpu": {"dtype": "float32"}}),
        # What is set to vLLM's default is as if it were not set.
        ({"quantization": None, "kv_cache_dtype": "auto", "generation_config": "auto", "hf_overrides": {}}, {}),
        ({"quantization": "fp8", "cuda": {"kv_cache_dtype": "fp8"}},
         {"quantization": "fp8", "cuda": {"kv_cache_dtype": "fp8"}}),
        ({"quantization": "fp8", "cpu": {"quantization": None}},
         {"quantization": "fp8", "cpu": {"quantization": None}}),
        ({"quantization": "fp8", "cpu": {"quantization": "fp8"}}, {"quantization": "fp8"}),
        ({"quantization": "fp8", "cuda": {"quantization": "awq"}},
         {"quantization": "fp8", "cuda": {"quantization": "awq"}}),
        ({"hf_overrides": {"rope_theta": 1e6}}, {"hf_overrides": {"rope_theta": 1e6}}),
        ({"lora_modules": {"soft": "/a", "loud": "/b"}}, {"lora_modules": ["loud", "soft"]}),
        ({"tool_parser": "hermes", "structured_outputs_config": {"backend": "xgrammar"}},
         {"tool_parser": "hermes", "structured_outputs_config": {"backend": "xgrammar"}}),
        ({"block_size": 16, "tensor_parallel_size": 2, "attention_backend": "FLASH_ATTN", "max_loras": 4}, {}),
    ],
)  # fmt: skip
def test_the_digest_s_part(given_settings: dict[str, Any], decisive: dict[str, Any]) -> None:
    assert engine(**given_settings).decisive() == decisive


def test_a_parser_of_tools_is_the_same_on_each_host_and_lets_jobs_offer_tools() -> None:
    settings = engine(tool_parser="hermes")
    assert settings.takes_tools
    assert not engine().takes_tools
    assert settings.vllm_args("cuda") == {}
    assert settings.on("cpu").tool_parser == "hermes"
    assert problems(cpu={"tool_parser": "hermes"})["cpu.tool_parser"].startswith("stands beside cpu and cuda")


def test_a_library_of_grammars_that_follows_the_first_job_is_refused() -> None:
    for backend in ("auto", "guidance", "outlines"):
        found = problems(structured_outputs_config={"backend": backend})
        assert "an engine has one such library" in found["structured_outputs_config.backend"]


def test_neither_torch_nor_vllm_is_loaded() -> None:
    code = "import sys, workers.runners.ar.engine_settings; print(*{'torch', 'vllm', 'numpy'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []


def test_guesses_are_checked_before_the_next_step_begins_and_count_in_the_digest() -> None:
    guessing = engine(speculative_config=NGRAM)
    assert guessing.vllm_args("cuda") == {"speculative_config": NGRAM, "async_scheduling": False}
    assert guessing.on("cuda").vllm_args("cuda") == guessing.vllm_args("cuda")
    assert guessing.decisive() == {"speculative_config": NGRAM}
    assert guessing.speculates
    assert engine(cuda={"speculative_config": NGRAM}).speculates
    assert not engine().speculates


def test_a_job_s_min_p_is_refused_where_tokens_are_guessed() -> None:
    assert ArParameters.model_validate({"min_p": 0.1}, context=engine()).min_p == 0.1
    assert ArParameters.model_validate({"min_p": 0.0}, context=engine(speculative_config=NGRAM)).min_p == 0
    with pytest.raises(ValidationError, match="checks them without min_p"):
        ArParameters.model_validate({"min_p": 0.1}, context=engine(speculative_config=NGRAM))
