"""A tiny checkpoint with experts, and with a layer that guesses tokens (multi-token prediction), as GLM-4.5's."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from examples.tinted.tinted.tiny_checkpoint import build_tiny_checkpoint

_HIDDEN = 128
_GUESSING = "model.layers.2."  # behind the model's two layers


def build_mtp_checkpoint(directory: Path) -> Path:
    """Write a Glm4Moe of two layers over bytes, and one that guesses, and return the directory.

    The layers add little to the last token's embedding, which the guessing layer takes, too: so it is often right.
    """
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

    build_tiny_checkpoint(directory)  # the tokenizer
    config = Glm4MoeConfig(
        vocab_size=257,
        hidden_size=_HIDDEN,
        intermediate_size=256,
        moe_intermediate_size=64,
        num_hidden_layers=2,
        first_k_dense_replace=1,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=1024,
        num_nextn_predict_layers=1,
        bos_token_id=None,
        eos_token_id=256,
    )
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        model: Any = Glm4MoeForCausalLM(config)
    for name, parameter in sorted(model.named_parameters()):
        if parameter.ndim > 1:
            adds = name.endswith(("o_proj.weight", "down_proj.weight", "down_proj"))
            loud = 1.0 if "embed" in name else (0.2 if adds else 1.5) / parameter.shape[-1] ** 0.5
            parameter.data.normal_(std=loud, generator=generator)
    model.save_pretrained(directory)
    weights = load_file(directory / "model.safetensors")
    guessing = {
        name.replace("model.layers.1.", _GUESSING): weight.clone()
        for name, weight in weights.items()
        if name.startswith("model.layers.1.")
    }
    ones = torch.ones(_HIDDEN)
    guessing |= {f"{_GUESSING}{name}.weight": ones.clone() for name in ("enorm", "hnorm", "shared_head.norm")}
    # Of the token's embedding and the hidden states before it, it takes the first.
    guessing[f"{_GUESSING}eh_proj.weight"] = torch.cat([torch.eye(_HIDDEN), torch.zeros(_HIDDEN, _HIDDEN)], dim=1)
    guessing[f"{_GUESSING}shared_head.head.weight"] = weights["lm_head.weight"].clone()
    guessing[f"{_GUESSING}embed_tokens.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file({**weights, **guessing}, directory / "model.safetensors", metadata={"format": "pt"})
    assert json.loads((directory / "config.json").read_text())["num_nextn_predict_layers"] == 1
    return directory
