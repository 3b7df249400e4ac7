"""Build a complete tiny Qwen-Image checkpoint with random weights, for tests and the demo.

    python -m workers.models.qwen_image.tiny_checkpoint DIR --seed 0

It has 1.7 M parameters in the layout of Diffusers, and is built in a few seconds: transformer, VAE, text encoder,
tokenizer and scheduler. Its pictures are noise, and every part that makes them is real.

Values that the code takes as given are the real checkpoint's: patches of 2 x 2 latents of 16 channels, 8 pixels to a
latent, the VAE's statistics, the schedule, and a tokenizer for which the prompt's template has 34 tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from workers.models.qwen2_5_vl.tiny_checkpoint import CONTEXT, HIDDEN, SPECIAL_TOKENS, tiny_model
from workers.models.qwen_image.template import DRAW_PREFIX, SUFFIX
from workers.models.tiny_directory import TinyDirectory, byte_tokenizer, randomise, write_json

_VOCAB_SIZE = 512  # the embedding table is padded past the tokenizer, as the real one is

_GAIN = 1.0

_SCHEDULER = {
    "base_image_seq_len": 256,
    "base_shift": 0.5,
    "max_image_seq_len": 8192,
    "max_shift": 0.9,
    "num_train_timesteps": 1000,
    "shift": 1.0,
    "shift_terminal": 0.02,
    "time_shift_type": "exponential",
    "use_dynamic_shifting": True,
}


def _write(directory: Path, seed: int) -> None:
    write_parts(directory, seed, DRAW_PREFIX + SUFFIX)
    write_json(directory / "model_index.json", {"_class_name": "QwenImagePipeline", **INDEX})


def write_parts(directory: Path, seed: int, template: str, marks: Iterable[str] = (), **transformer: Any) -> Any:
    """Write transformer, VAE, text encoder, tokenizer and scheduler of a checkpoint; return the tokenizer.

    ``marks`` are a token each, and so are the words of ``template``. ``transformer``: more of its settings.
    """
    from diffusers import FlowMatchEulerDiscreteScheduler

    generator = torch.Generator().manual_seed(seed)
    parts = {"transformer": _transformer(**transformer), "vae": _vae(), "text_encoder": tiny_model(_VOCAB_SIZE)}
    for name, model in parts.items():
        for path, parameter in sorted(model.named_parameters()):
            randomise(path, parameter.data, generator, _GAIN)
        model.save_pretrained(directory / name)
    tokenizer = _tokenizer(template, marks)
    tokenizer.save_pretrained(directory / "tokenizer")
    scheduler: Any = FlowMatchEulerDiscreteScheduler(**_SCHEDULER)
    scheduler.save_pretrained(directory / "scheduler")
    return tokenizer


INDEX = {
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "Qwen2_5_VLForConditionalGeneration"],
    "tokenizer": ["transformers", "Qwen2Tokenizer"],
    "transformer": ["diffusers", "QwenImageTransformer2DModel"],
    "vae": ["diffusers", "AutoencoderKLQwenImage"],
}
"""The classes of the parts that ``write_parts`` writes, as model_index.json has them."""


def _transformer(**settings: Any) -> Any:
    from diffusers import QwenImageTransformer2DModel

    with torch.random.fork_rng(devices=[]):
        return QwenImageTransformer2DModel(
            num_layers=2,
            attention_head_dim=32,
            num_attention_heads=2,
            joint_attention_dim=HIDDEN,
            axes_dims_rope=(8, 12, 12),
            **settings,
        )


def _vae() -> Any:
    from diffusers import AutoencoderKLQwenImage

    with torch.random.fork_rng(devices=[]):
        return AutoencoderKLQwenImage(base_dim=8, num_res_blocks=1)


def _tokenizer(template: str, marks: Iterable[str]) -> Any:
    words = [*marks, *re.findall(r" ?[A-Za-z]+", re.sub(r"<\|\w+\|>", "\n", template))]
    return byte_tokenizer(SPECIAL_TOKENS, whole_words=words, context=CONTEXT)


TINY = TinyDirectory(version=1, write=_write)
build_tiny_checkpoint = TINY.build

if __name__ == "__main__":
    TINY.main(__doc__)
