"""Published checkpoints by their sizes: their configs, and their weights as holes of the true number."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.unit.cards.test_need import TALKER, TEXT, write_hole

MILLION: Final = 10**6


class Checkpoint(NamedTuple):
    """name: the model's; weights: millions of values by the beginning of their names; configs: by file."""

    name: str
    weights: Mapping[str, int]
    configs: Mapping[str, Mapping[str, Any]] = {}

    def write(self, directory: Path) -> None:
        """Write its files, which take no room."""
        for prefix, millions in self.weights.items():
            folder, _, beginning = prefix.rpartition("/")
            file = directory / folder / f"model-{beginning or 'all.'}safetensors"
            write_hole(file, {f"{beginning}w": ("BF16", millions * MILLION)})
        for name, content in self.configs.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(json.dumps(content), encoding="utf-8")


def text(layers: int, heads: int, keys: int, width: int, **more: int) -> dict[str, int]:
    """The config of a language model with a context of 32,768 tokens."""
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "hidden_size": width,
        "max_position_embeddings": 32768,
        **more,
    }


def omni(name: str, thinker: int, config: Mapping[str, int]) -> Checkpoint:
    """A Qwen2.5-Omni of so many millions in its thinker. The talker of 7B stands for a smaller one, too."""
    weights = {"thinker.": thinker, "talker.": 1_350, "token2wav.": 450}
    configs = {"config.json": {"thinker_config": {"text_config": config}, "talker_config": TALKER}}
    return Checkpoint(name, weights, configs)


def blocks(prefix: str, number: int, millions: int, rest: int) -> dict[str, int]:
    """A transformer of so many blocks, each of so many millions, and what is no block."""
    return {**{f"{prefix}{n}.": millions for n in range(number)}, f"{prefix.partition('/')[0]}/embedder.": rest}


_ENCODER: Final = {"text_encoder/lm_head.": 545, "text_encoder/visual.": 680, "text_encoder/model.": 7_070}
_PICTURES: Final = {**_ENCODER, **blocks("transformer/transformer_blocks.", 60, 340, 30), "vae/": 127}
_EXPERTS: Final = {
    **blocks("transformer/blocks.", 40, 351, 250),
    **blocks("transformer_2/blocks.", 40, 351, 250),
}
_VIDEOS: Final = {"text_encoder/": 5_680, **_EXPERTS, "vae/": 127}
_CHAT: Final = (
    Checkpoint("Mistral-Small-24B", {"": 23_570}, {"config.json": text(40, 32, 8, 5120, head_dim=128)}),
    Checkpoint("Qwen2.5-14B", {"": 14_770}, {"config.json": text(48, 40, 8, 5120)}),
    Checkpoint("Qwen2.5-7B", {"": 7_620}, {"config.json": TEXT}),
)
_LONG: Final = {"max_position_embeddings": 128_000}
_QWEN3: Final = {"head_dim": 128, "max_position_embeddings": 65_536}
CHECKPOINTS: Final[Mapping[str, tuple[Checkpoint, ...]]] = {
    "qwen2_5_omni": (
        omni("Qwen2.5-Omni-7B", 8_930, TEXT),
        omni("Qwen2.5-Omni-3B", 4_700, text(36, 16, 2, 2048)),
    ),
    "chat": _CHAT,
    "qwen2_5_vl": (
        Checkpoint("Qwen2.5-VL-7B", {"": 8_290}, {"config.json": text(28, 28, 4, 3584, **_LONG)}),
        Checkpoint("Qwen2.5-VL-3B", {"": 3_750}, {"config.json": text(36, 16, 2, 2048, **_LONG)}),
    ),
    "qwen3_omni": (
        Checkpoint(
            "Qwen3-Omni-30B-A3B",
            {"thinker.": 31_700, "talker.": 3_400, "code2wav.": 220},
            {
                "config.json": {
                    "thinker_config": {"text_config": text(48, 32, 4, 2048, **_QWEN3)},
                    "talker_config": {"text_config": text(20, 16, 2, 1024, **_QWEN3)},
                }
            },
        ),
    ),
    "voice": _CHAT,
    "qwen_image": (Checkpoint("Qwen-Image", _PICTURES, {"text_encoder/config.json": TEXT}),),
    "qwen_image_edit": (Checkpoint("Qwen-Image-Edit", _PICTURES, {"text_encoder/config.json": TEXT}),),
    "glm_image": (
        Checkpoint(
            "GLM-Image",
            {
                "vision_language_encoder/model.visual.": 310,
                "vision_language_encoder/model.vqmodel.": 15,
                "vision_language_encoder/model.language_model.": 9_430,
                **blocks("transformer/transformer_blocks.", 30, 226, 220),
                "text_encoder/": 200,
                "vae/": 50,
            },
            {"vision_language_encoder/config.json": {"text_config": text(40, 32, 2, 4096)}},
        ),
    ),
    "wan": (Checkpoint("Wan2.2-T2V-A14B", _VIDEOS),),
    "wan_i2v": (Checkpoint("Wan2.2-I2V-A14B", _VIDEOS),),
}
"""Of each pipeline on GPUs, the largest first. Weights have 2 bytes in the file, whatever a stage makes of them."""
