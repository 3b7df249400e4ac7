"""A tiny causal language model, complete and random: a Llama whose text is printable noise."""

import json
import math
from pathlib import Path
from typing import Any

import torch

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<file_sep>")
CONTEXT = 1024
_BYTES = 256
_IDS = {token: _BYTES + n for n, token in enumerate(SPECIAL)}
_SPOKEN = [*map(chr, range(ord("!"), ord("~") + 1)), "Ġ"]  # printable ASCII, and the space
_VOCABULARY = 320  # the embedding table is padded past the tokenizer
STOP = "~"  # it ends a text too, as generation_config.json alone says

# SmolLM2-Instruct's: it adds strings, so a content in parts has to be joined before.
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def build_causal_lm(directory: Path, *, seed: int = 0, hidden_size: int = 64, layers: int = 2) -> Path:
    """A checkpoint directory: float32; 0.1 M parameters, with 768 and 8 layers 39 M."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=max(4, hidden_size // 32),
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=_IDS["<|im_start|>"],
        eos_token_id=_IDS["<|im_end|>"],
        dtype="float32",
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(config)
    for _, parameter in sorted(model.named_parameters()):
        if parameter.ndim > 1:
            parameter.data.normal_(std=1.5 / math.sqrt(parameter[0].numel()), generator=generator)
    keep = torch.zeros(_VOCABULARY, dtype=torch.bool)
    keep[[_symbols()[symbol] for symbol in _SPOKEN]] = True
    keep[_IDS["<|im_end|>"]] = True
    model.lm_head.weight.data[~keep] = 0  # they then never win
    model.save_pretrained(directory)
    stops = {"bos_token_id": _IDS["<|im_start|>"], "eos_token_id": [_IDS["<|im_end|>"], _symbols()[STOP]]}
    (directory / "generation_config.json").write_text(json.dumps(stops), encoding="utf-8")
    _write_tokenizer(directory)
    return directory


def _symbols() -> dict[str, int]:
    """The 256 symbols of byte-level BPE."""
    from tokenizers import pre_tokenizers

    return {symbol: n for n, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def _write_tokenizer(directory: Path) -> None:
    """Byte-level with a single merge; left to itself it puts a token in front of every text, as Llama's does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(vocab=_symbols() | _IDS | {"th": _BYTES + len(_IDS)}, merges=[("t", "h")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", _IDS["<|endoftext|>"])]
    )
    named: dict[str, Any] = {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "extra_special_tokens": ["<file_sep>"],
        "chat_template": CHAT_TEMPLATE,
    }
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(directory)
