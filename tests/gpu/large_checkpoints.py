"""Checkpoints whose weights are large enough to be seen in a process's memory, and whose other parts are tiny."""

import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

FILE = "1GB"
"""The largest file of weights."""


@dataclass(frozen=True)
class Sizes:
    """How large the weights are."""

    width: int  # of a transformer, a multiple of 1024
    layers: int
    glyphs: int  # width of the feed-forward layers of the glyph encoder


LARGE = Sizes(width=3072, layers=6, glyphs=1 << 20)
SMALL = Sizes(width=1024, layers=2, glyphs=1 << 15)


def qwen_image(tiny: Path, directory: Path, device: torch.device, sizes: Sizes) -> Path:
    """Write a Qwen-Image checkpoint with the transformer's real width: 0.7 GB of bfloat16 a layer at 3,072."""
    import diffusers

    def make() -> Any:
        settings = {
            "attention_head_dim": 128,
            "num_attention_heads": sizes.width // 128,
            "axes_dims_rope": (16, 56, 56),
        }
        return _made(
            diffusers.QwenImageTransformer2DModel, tiny / "transformer", settings | {"num_layers": sizes.layers}
        )

    return _with_parts(tiny, directory, device, {"transformer": make})


def glm_image(tiny: Path, directory: Path, device: torch.device, sizes: Sizes) -> Path:
    """Write a GLM-Image checkpoint with a wide transformer, and a glyph encoder with wide layers."""
    import diffusers
    import transformers

    def encoder() -> Any:
        settings: Any = json.loads((tiny / "text_encoder" / "config.json").read_text(encoding="utf-8"))
        config = transformers.T5Config(**settings | {"d_ff": sizes.glyphs, "num_layers": sizes.layers})
        return transformers.T5EncoderModel(config)

    def transformer() -> Any:
        settings = {"num_attention_heads": sizes.width // 32, "num_layers": sizes.layers}
        return _made(diffusers.GlmImageTransformer2DModel, tiny / "transformer", settings)

    return _with_parts(tiny, directory, device, {"text_encoder": encoder, "transformer": transformer})


def qwen2_5_omni(tiny: Path, directory: Path, device: torch.device, sizes: Sizes) -> Path:
    """Write a checkpoint that holds the ``token2wav`` of Qwen2.5-Omni alone, with a wide transformer, in float32."""
    from safetensors.torch import save_file
    from transformers import Qwen2_5OmniToken2WavConfig, Qwen2_5OmniToken2WavModel

    shutil.copytree(tiny, directory, ignore=shutil.ignore_patterns("*.safetensors"))
    config: Any = json.loads((tiny / "config.json").read_text(encoding="utf-8"))
    width = sizes.width // 2
    wide = {"hidden_size": width, "num_attention_heads": width // 32, "num_hidden_layers": 4 * sizes.layers}
    config["token2wav_config"]["dit_config"] |= wide
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with torch.device(device):
        model: Any = Qwen2_5OmniToken2WavModel(Qwen2_5OmniToken2WavConfig(**config["token2wav_config"]))
    _randomise(model)
    weights = {f"token2wav.{name}": weight.cpu().contiguous() for name, weight in model.state_dict().items()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def _made(kind: Any, part: Path, settings: Mapping[str, Any]) -> Any:
    return kind.from_config(kind.load_config(part) | dict(settings))


def _with_parts(tiny: Path, directory: Path, device: torch.device, parts: Mapping[str, Callable[[], Any]]) -> Path:
    """Write the tiny checkpoint with these parts in the place of its own, in bfloat16."""
    shutil.copytree(tiny, directory, ignore=lambda place, names: parts if Path(place) == tiny else ())
    for name, make in parts.items():
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device(device):
                model = make()
        finally:
            torch.set_default_dtype(before)
        _randomise(model)
        model.save_pretrained(directory / name, max_shard_size=FILE)
    return directory


@torch.no_grad()
def _randomise(model: torch.nn.Module) -> None:
    torch.manual_seed(0)
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.normal_(std=1 / math.sqrt(weight[0].numel()))
