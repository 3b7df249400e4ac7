"""workers.models.causal_lm.gguf: a tiny model written as GGUF comes back as it was."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from transformers import AutoModelForCausalLM, AutoTokenizer

from omni_jobs.errors import ConfigError
from omni_jobs.prompts.renderers import load_renderer
from tests.oracles.causal_lm import CHAT_TEMPLATE, CONTEXT, STOP
from workers.models.causal_lm.gguf import convert_gguf

LAYERS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
MESSAGES = [{"role": "user", "content": "Tell me 42 things. 用 🙂"}]


@pytest.fixture(scope="module")
def model(tiny_causal_lm: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_causal_lm).eval()


@pytest.fixture(scope="module")
def tokenizer(tiny_causal_lm: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_causal_lm)


def interleaved(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """llama.cpp rotates neighbours where Transformers rotates halves."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def gguf_name(name: str) -> str:
    if not name.startswith("model.layers."):
        return NAMES[name]
    number, _, part = name.removeprefix("model.layers.").partition(".")
    return f"blk.{number}.{LAYERS[part]}"


def write_gguf(path: Path, model: Any, tokenizer: Any, leave_out: tuple[str, ...] = ()) -> Path:
    """As llama.cpp's convert_hf_to_gguf.py does, in float32: unpacking blocks of few bits is Transformers' affair."""
    config = model.config
    writer = GGUFWriter(str(path), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    if "tokens" not in leave_out:
        known = {n: token for token, n in tokenizer.get_vocab().items()}
        tokens = [known.get(n, f"[PAD{n}]") for n in range(config.vocab_size)]
        writer.add_token_list(tokens)
        writer.add_token_types([3 if token in tokenizer.all_special_tokens else 1 for token in tokens])
        writer.add_token_merges(["t h"])
    if "eos" not in leave_out:
        writer.add_eos_token_id(tokenizer.eos_token_id)
        writer.add_eot_token_id(tokenizer.get_vocab()[STOP])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    if "template" not in leave_out:
        writer.add_chat_template(CHAT_TEMPLATE)
    for name, tensor in model.state_dict().items():
        target = gguf_name(name.removesuffix(".weight"))
        weight = tensor.numpy()
        if target.endswith(("attn_q", "attn_k")):
            heads = config.num_attention_heads if target.endswith("q") else config.num_key_value_heads
            weight = interleaved(weight, heads)
        writer.add_tensor(f"{target}.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_model_comes_back_as_it_was(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    directory = convert_gguf(write_gguf(tmp_path / "m.gguf", model, tokenizer), tmp_path / "made" / "checkpoint")
    assert [path.name for path in directory.parent.iterdir()] == ["checkpoint"]

    renderer = load_renderer("causal_lm", directory)
    prompt = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    assert renderer.encode({"messages": MESSAGES}) == prompt
    assert (renderer.max_model_len, renderer.hidden_size) == (CONTEXT, model.config.hidden_size)
    generation = json.loads((directory / "generation_config.json").read_text(encoding="utf-8"))
    assert generation["eos_token_id"] == [tokenizer.eos_token_id, tokenizer.get_vocab()[STOP]]

    found = AutoModelForCausalLM.from_pretrained(directory).state_dict()
    assert found.keys() == model.state_dict().keys()
    for name, weight in model.state_dict().items():
        assert torch.equal(found[name], weight.bfloat16()), name


def test_nothing_is_overwritten(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="is there already"):
        convert_gguf(write_gguf(tmp_path / "m.gguf", model, tokenizer), tmp_path / "there")


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("leave_out", "spoil", "complaint"),
    [
        (("template",), None, r"tokenizer\.chat_template"),
        (("tokens",), None, r"tokenizer\.ggml\.tokens"),
        (("eos",), None, "which token ends a text"),
        ((), lambda path: path.write_bytes(b"not a model"), "not a GGUF file"),
        ((), lambda path: path.write_bytes(b""), "not a GGUF file"),
        ((), lambda path: path.write_bytes(path.read_bytes()[:400]), "not a GGUF file"),
        ((), truncated, "cannot make a model of it"),
        ((), Path.unlink, "no such file"),
    ],
)
def test_an_incomplete_model_is_refused(
    model: Any, tokenizer: Any, tmp_path: Path, leave_out: tuple[str, ...],
    spoil: Callable[[Path], object] | None, complaint: str,
) -> None:  # fmt: skip
    path = write_gguf(tmp_path / "m.gguf", model, tokenizer, leave_out)
    if spoil is not None:
        spoil(path)
    with pytest.raises(ConfigError, match=complaint):
        convert_gguf(path, tmp_path / "made" / "checkpoint")
    made = tmp_path / "made"
    assert not made.exists() or list(made.iterdir()) == []
