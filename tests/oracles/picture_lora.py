"""LoRA adapters for a network of linear layers, and the same checkpoint with one merged into its weights."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

_WEIGHTS = "diffusion_pytorch_model.safetensors"
_ALPHA = 6.0


def layers_of(checkpoint: Path, part: str = "transformer") -> dict[str, torch.Size]:
    """Return the names of a transformer's linear layers, and the shape of the weight of each."""
    weights = load_file(checkpoint / part / _WEIGHTS)
    linear = {name.removesuffix(".weight"): each.shape for name, each in weights.items() if name.endswith(".weight")}
    return {name: shape for name, shape in linear.items() if len(shape) == 2 and "embedding" not in name}


def build_picture_adapter(
    checkpoint: Path,
    directory: Path,
    seed: int,
    rank: int = 4,
    *,
    by_diffusers: bool = False,
    part: str = "transformer",
) -> Path:
    """Write a random adapter of every linear layer as PEFT saves one, or as Diffusers does, without settings."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    prefix = "transformer." if by_diffusers else "base_model.model."
    for name, (out_features, in_features) in layers_of(checkpoint, part).items():
        down = torch.randn(rank, in_features, generator=generator) / in_features**0.5
        up = torch.randn(out_features, rank, generator=generator) * 0.05
        weights[f"{prefix}{name}.lora_A.weight"], weights[f"{prefix}{name}.lora_B.weight"] = down, up
    directory.mkdir(parents=True)
    if by_diffusers:
        save_file(weights, directory / "pytorch_lora_weights.safetensors")
        return directory
    save_file(weights, directory / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": _ALPHA, "target_modules": ["to_q"], "bias": "none"}
    (directory / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def merge_picture_adapter(checkpoint: Path, adapter: Path, directory: Path, part: str = "transformer") -> Path:
    """Write the checkpoint with W + scale · B · A for each weight W of its transformer that the adapter changes."""
    shutil.copytree(checkpoint, directory)
    file = directory / part / _WEIGHTS
    weights = load_file(file)
    (path,) = adapter.glob("*.safetensors")
    parts = {
        name.removeprefix("base_model.model.").removeprefix("transformer."): each
        for name, each in load_file(path).items()
    }
    for name in [each for each in parts if each.endswith(".lora_A.weight")]:
        up, down = parts[name.replace("lora_A", "lora_B")], parts[name]
        scale = _ALPHA / len(down) if path.name.startswith("adapter") else 1.0
        weights[name.replace(".lora_A", "")] += scale * up @ down
    save_file(weights, file, metadata={"format": "pt"})
    return directory
