"""Build a complete tiny Qwen2.5-VL checkpoint with random weights, for tests and the demo.

    python -m workers.models.qwen2_5_vl.tiny_checkpoint DIR --seed 0

It has 0.6 M parameters and is built in a second: language model, vision encoder, tokenizer, chat template and
preprocessor. Its text is printable noise.

Values that the code takes as given are the real checkpoint's: patch sizes, the time of a video's frames, the files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from workers.models.tiny_directory import BYTES, TinyDirectory, byte_tokenizer, printable_only, randomise, write_json

_SPECIAL_NAMES = (
    "endoftext im_start im_end object_ref_start object_ref_end box_start box_end quad_start quad_end vision_start "
    "vision_end vision_pad image_pad video_pad"
)
SPECIAL_TOKENS = [f"<|{name}|>" for name in _SPECIAL_NAMES.split()]
"""Some of the real tokenizer's, in its order, after the 256 byte symbols."""

_TOKEN_IDS = {token: BYTES + n for n, token in enumerate(SPECIAL_TOKENS)}
_VOCAB_SIZE = 320  # the embedding table is padded past the tokenizer, as the real one is

HIDDEN = 128
"""The width of the language model's hidden states."""

CONTEXT = 8192
"""The tokens of the longest prompt and reply together."""

_GAIN = 1.5  # weights have the deviation _GAIN / sqrt(fan in), because the default 0.02 makes all pictures alike

# Qwen2.5-VL's own template. It adds a default system message where the request has none.
_CHAT_TEMPLATE = (
    "{% set image_count = namespace(value=0) %}{% set video_count = namespace(value=0) %}{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\n"
    "You are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "{% set image_count.value = image_count.value + 1 %}"
    "{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif content['type'] == 'video' or 'video' in content %}"
    "{% set video_count.value = video_count.value + 1 %}"
    "{% if add_vision_id %}Video {{ video_count.value }}: {% endif %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# As in the real checkpoint this file alone says how pictures and the frames of videos are resized.
_PREPROCESSOR: dict[str, Any] = {
    "processor_class": "Qwen2_5_VLProcessor",
    "image_processor_type": "Qwen2VLImageProcessor",
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "min_pixels": 4 * 28 * 28,
    "max_pixels": 1024 * 28 * 28,  # 1024 tokens, because the real 16384 exceed the tiny context
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
}


def _write(directory: Path, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = tiny_model(_VOCAB_SIZE)
    for name, parameter in sorted(model.named_parameters()):
        randomise(name, parameter.data, generator, _GAIN)
    printable_only(model.lm_head.weight.data, _TOKEN_IDS["<|im_end|>"])
    model.save_pretrained(directory)
    byte_tokenizer(SPECIAL_TOKENS, context=CONTEXT).save_pretrained(directory)
    write_json(directory / "generation_config.json", {"eos_token_id": _TOKEN_IDS["<|im_end|>"], "do_sample": False})
    write_json(directory / "preprocessor_config.json", _PREPROCESSOR)
    write_json(directory / "chat_template.json", {"chat_template": _CHAT_TEMPLATE})


def tiny_model(vocab_size: int) -> Any:
    """Return a tiny Qwen2_5_VLForConditionalGeneration in float32, whose weights the caller draws."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": vocab_size,
            "hidden_size": HIDDEN,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": CONTEXT,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0, "mrope_section": [4, 6, 6]},
            "tie_word_embeddings": False,
            "bos_token_id": _TOKEN_IDS["<|endoftext|>"],
            "eos_token_id": _TOKEN_IDS["<|im_end|>"],
        },
        vision_config={
            "depth": 2,
            "fullatt_block_indexes": [1],
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 2,
            "tokens_per_second": 2,
            "out_hidden_size": HIDDEN,
        },
        image_token_id=_TOKEN_IDS["<|image_pad|>"],
        video_token_id=_TOKEN_IDS["<|video_pad|>"],
        vision_start_token_id=_TOKEN_IDS["<|vision_start|>"],
        vision_end_token_id=_TOKEN_IDS["<|vision_end|>"],
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        return Qwen2_5_VLForConditionalGeneration(config)


TINY = TinyDirectory(version=1, write=_write)
build_tiny_checkpoint = TINY.build

if __name__ == "__main__":
    TINY.main(__doc__)
