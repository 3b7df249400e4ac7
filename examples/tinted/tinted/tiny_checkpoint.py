"""Build a tiny checkpoint: ``python -m tinted.tiny_checkpoint DIRECTORY``. Its text is noise."""

import argparse
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

__all__ = ["HIDDEN", "build_tiny_checkpoint", "main"]

HIDDEN = 128
_END = 256

_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


def build_tiny_checkpoint(directory: Path) -> Path:
    """Write a Llama of two layers over bytes, with its tokenizer, chat template and tints, and return the directory."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: n for n, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = {"eos_token": "<|end|>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=_TEMPLATE, **special)
    fast.save_pretrained(directory)
    config = LlamaConfig(
        vocab_size=_END + 1,
        hidden_size=HIDDEN,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=_END,
    )
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        model: Any = LlamaForCausalLM(config)
    for weight in (parameter.data for _, parameter in sorted(model.named_parameters()) if parameter.ndim > 1):
        weight.normal_(std=1.5 / weight[0].numel() ** 0.5, generator=generator)
    model.save_pretrained(directory)
    # Loud enough to change what is said.
    tints = {name: torch.randn(HIDDEN, generator=generator) * 0.3 for name in ("warm", "cold")}
    tints["drift"] = torch.randn(8, HIDDEN, generator=generator) * 0.3
    (directory / "tints").mkdir(exist_ok=True)  # vLLM takes every safetensors file beside config.json for weights
    save_file(tints, directory / "tints" / "tints.safetensors")
    return directory


def main() -> None:
    """Build the checkpoint that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tinted.tiny_checkpoint", description=__doc__)
    parser.add_argument("directory", type=Path)
    print(build_tiny_checkpoint(parser.parse_args().directory))


if __name__ == "__main__":
    main()
