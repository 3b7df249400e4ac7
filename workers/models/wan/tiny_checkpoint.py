"""Build a complete tiny Wan checkpoint with random weights, for tests and the demo.

    python -m workers.models.wan.tiny_checkpoint DIR --seed 0

It has 1 M parameters in the layout of Diffusers, and is built in a few seconds: two transformers, VAE, text encoder,
tokenizer and scheduler. Its videos are noise, and every part that makes them is real.

Values that the code takes as given are the real checkpoint's: patches of 2 x 2 latents of 16 channels, 8 pixels and 4
frames to a latent, the VAE's statistics, the schedule, and the time at which the second transformer takes over.
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import torch

from workers.models.tiny_directory import BYTES, TinyDirectory, randomise, write_json
from workers.models.wan.family import CHANNELS
from workers.models.wan.model_index import TEXT_CLASS

HIDDEN = 64
"""The width of the text encoder's states."""

_WORDS = 512  # the embedding table is padded past the tokenizer, as the real one is
_GAIN = 1.0


def _write(directory: Path, seed: int) -> None:
    write_parts(directory, seed, CHANNELS)
    write_json(directory / "model_index.json", {"_class_name": TEXT_CLASS, "boundary_ratio": 0.875, **INDEX})


def write_parts(directory: Path, seed: int, channels: int) -> None:
    """Write all folders of a checkpoint whose transformers see this number of channels."""
    generator = torch.Generator().manual_seed(seed)
    parts = {
        "transformer": _transformer(channels),
        "transformer_2": _transformer(channels),
        "vae": _vae(),
        "text_encoder": _text_encoder(),
    }
    for name, model in parts.items():
        for path, parameter in sorted(model.named_parameters()):
            randomise(path, parameter.data, generator, _GAIN)
        model.save_pretrained(directory / name)
    _write_tokenizer(directory / "tokenizer")
    _scheduler().save_pretrained(directory / "scheduler")


INDEX = {
    "expand_timesteps": False,
    "scheduler": ["diffusers", "UniPCMultistepScheduler"],
    "text_encoder": ["transformers", "UMT5EncoderModel"],
    "tokenizer": ["transformers", "PreTrainedTokenizerFast"],
    "transformer": ["diffusers", "WanTransformer3DModel"],
    "transformer_2": ["diffusers", "WanTransformer3DModel"],
    "vae": ["diffusers", "AutoencoderKLWan"],
}
"""The parts that ``write_parts`` writes, as model_index.json has them."""


def _scheduler() -> Any:
    from diffusers import UniPCMultistepScheduler

    return UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)


def _transformer(channels: int) -> Any:
    from diffusers import WanTransformer3DModel

    with torch.random.fork_rng(devices=[]):
        return WanTransformer3DModel(
            in_channels=channels,
            num_attention_heads=2,
            attention_head_dim=24,
            text_dim=HIDDEN,
            freq_dim=32,
            ffn_dim=96,
            num_layers=2,
        )


def _vae() -> Any:
    from diffusers import AutoencoderKLWan

    with torch.random.fork_rng(devices=[]):
        return AutoencoderKLWan(base_dim=8, num_res_blocks=1)


def _text_encoder() -> Any:
    from transformers import UMT5Config, UMT5EncoderModel

    config = UMT5Config(
        vocab_size=_WORDS, d_model=HIDDEN, d_kv=16, d_ff=128, num_layers=2, num_heads=4, is_encoder_decoder=False
    )
    with torch.random.fork_rng(devices=[]):
        return UMT5EncoderModel(config)


def _write_tokenizer(directory: Path) -> None:
    """Write a tokenizer of letters, and of bytes for all others, with the special tokens of a T5."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
    from tokenizers.models import Unigram
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "</s>", "<unk>"]
    letters = [letter for letter in string.printable if letter > " "]
    pieces = [(token, 0.0) for token in special] + [(f"<0x{byte:02X}>", -9.0) for byte in range(BYTES)]
    pieces += [("▁", -2.0), *((letter, -3.0) for letter in letters)]
    tokenizer = Tokenizer(Unigram(pieces, unk_id=special.index("<unk>"), byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.add_special_tokens(special)
    directory.mkdir()
    roles: Any = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles).save_pretrained(directory)


TINY = TinyDirectory(version=1, write=_write)
build_tiny_checkpoint = TINY.build

if __name__ == "__main__":
    TINY.main(__doc__)
