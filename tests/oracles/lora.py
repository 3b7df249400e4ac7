"""LoRA adapters for the tiny Llama of ``tests.oracles.tinted``, and the same model with one merged into its weights."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

TARGETS = ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
RANK = 8
_ALPHA = 16


def build_adapter(checkpoint: Path, directory: Path, seed: int, rank: int = RANK) -> Path:
    """Write a random adapter as PEFT saves one, loud enough to change what is said."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, weight in load_file(checkpoint / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if module.endswith(TARGETS):
            out_features, in_features = weight.shape
            down = torch.randn(rank, in_features, generator=generator) / in_features**0.5
            weights[f"base_model.model.{module}.lora_A.weight"] = down
            weights[f"base_model.model.{module}.lora_B.weight"] = (
                torch.randn(out_features, rank, generator=generator) * 0.1
            )
    directory.mkdir(parents=True)
    save_file(weights, directory / "adapter_model.safetensors")
    targets = [each.rpartition(".")[2] for each in TARGETS]
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": _ALPHA, "target_modules": targets, "bias": "none"}
    (directory / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def merge(checkpoint: Path, adapter: Path, directory: Path) -> Path:
    """Write the checkpoint with W + alpha / rank · B · A for each weight W that the adapter changes."""
    directory.mkdir(parents=True)
    for each in checkpoint.iterdir():
        if each.is_file() and each.suffix == ".json":
            (directory / each.name).write_bytes(each.read_bytes())
    weights = load_file(checkpoint / "model.safetensors")
    parts = load_file(adapter / "adapter_model.safetensors")
    for name in [each for each in parts if each.endswith("lora_A.weight")]:
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        up, down = parts[name.replace("lora_A", "lora_B")], parts[name]
        weights[f"{module}.weight"] += _ALPHA / down.shape[0] * up @ down
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
