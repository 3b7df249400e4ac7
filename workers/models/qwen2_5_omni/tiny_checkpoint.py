"""Build a complete tiny Qwen2.5-Omni checkpoint with random weights, for tests and the demo.

    python -m workers.models.qwen2_5_omni.tiny_checkpoint DIR --seed 0

It has 4.0 M parameters and 16 MB, and is built in a few seconds. Like the real checkpoint it has the thinker,
the talker and token2wav under their prefixes, a tokenizer, a chat template, a preprocessor and speakers. Its
text is printable noise, and its speech is audible noise.

Values that the code takes as given are the real checkpoint's: codec ids and vocabulary, sampling rates, patch
sizes, 240 samples per mel frame. All head dimensions are 32, the least that attention on CPUs takes. The
talker's hidden size differs from heads x head dimension, as in the real checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors.torch import save_file

from workers.models.tiny_directory import BYTES, TinyDirectory, byte_tokenizer, printable_only, randomise, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SPEAKERS = ("Chelsie", "Ethan")

# In the order of the real tokenizer, after the 256 byte symbols.
_SPECIAL_NAMES = (
    "endoftext im_start im_end AUDIO audio_bos audio_eos box_end quad_start quad_end vision_bos vision_eos vision_pad "
    "IMAGE VIDEO tts_pad tts_bos tts_eos"
)
_SPECIAL_TOKENS = [
    *(f"<|{name}|>" for name in _SPECIAL_NAMES.split()),
    *(f"<|speaker_{name}|>" for name in SPEAKERS),
]
_TOKEN_IDS = {token: BYTES + n for n, token in enumerate(_SPECIAL_TOKENS)}
_VOCAB_SIZE = 320  # the embedding table is padded past the tokenizer, as the real one is

# The names by which Transformers' processor finds its placeholders.
_NAMED_TOKENS = {
    "image_token": "<|IMAGE|>",
    "audio_token": "<|AUDIO|>",
    "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}

# Qwen2.5-Omni's own template. It adds a default system message where the request has none.
_CHAT_TEMPLATE = (
    "{% set audio_count = namespace(value=0) %}{% set image_count = namespace(value=0) %}"
    "{% set video_count = namespace(value=0) %}{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\n"
    "You are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "{% set image_count.value = image_count.value + 1 %}"
    "{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}<|vision_bos|><|IMAGE|><|vision_eos|>"
    "{% elif content['type'] == 'audio' or 'audio' in content or 'audio_url' in content %}"
    "{% set audio_count.value = audio_count.value + 1 %}"
    "{% if add_audio_id %}Audio {{ audio_count.value }}: {% endif %}<|audio_bos|><|AUDIO|><|audio_eos|>"
    "{% elif content['type'] == 'video' or 'video' in content %}"
    "{% set video_count.value = video_count.value + 1 %}"
    "{% if add_vision_id %}Video {{ video_count.value }}: {% endif %}<|vision_bos|><|VIDEO|><|vision_eos|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_PREPROCESSOR: dict[str, Any] = {
    "processor_class": "Qwen2_5OmniProcessor",
    "image_processor_type": "Qwen2VLImageProcessor",
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "min_pixels": 4 * 28 * 28,
    "max_pixels": 1024 * 28 * 28,  # 1024 tokens, because the real 16384 exceed the tiny context
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 128,
    "sampling_rate": 16000,
    "hop_length": 160,
    "chunk_length": 30,  # seconds; 300, as in the real checkpoint, would pad every clip to 300 s
    "n_samples": 480000,
    "nb_max_frames": 3000,
    "n_fft": 400,
    "dither": 0.0,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
}

# The names by which the configs of thinker and talker know them.
_MEDIA_TOKENS = {
    "audio_token_index": _TOKEN_IDS["<|AUDIO|>"],
    "image_token_index": _TOKEN_IDS["<|IMAGE|>"],
    "video_token_index": _TOKEN_IDS["<|VIDEO|>"],
    "audio_start_token_id": _TOKEN_IDS["<|audio_bos|>"],
    "audio_end_token_id": _TOKEN_IDS["<|audio_eos|>"],
    "vision_start_token_id": _TOKEN_IDS["<|vision_bos|>"],
    "vision_end_token_id": _TOKEN_IDS["<|vision_eos|>"],
}
_HIDDEN = 128  # of the thinker, and so of the hidden states that the talker takes
_HEAD_DIM = 32
_CONTEXT = 8192
_ROPE = {"rope_type": "default", "rope_theta": 1_000_000.0, "mrope_section": [4, 6, 6]}
_GAIN = 1.5  # weights have the deviation _GAIN / sqrt(fan in), because the default 0.02 gives silence


def _write(directory: Path, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = _model(generator)
    model.config.save_pretrained(directory)
    save_file(dict(model.state_dict()), directory / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(directory)
    write_json(directory / "generation_config.json", {"eos_token_id": _TOKEN_IDS["<|im_end|>"], "do_sample": False})
    write_json(directory / "preprocessor_config.json", _PREPROCESSOR)
    write_json(directory / "chat_template.json", {"chat_template": _CHAT_TEMPLATE})
    speakers = {
        name: {
            "bos_token": _TOKEN_IDS[f"<|speaker_{name}|>"],
            "cond": torch.randn(1, 192, generator=generator),
            "ref_mel": torch.randn(1, 60, 80, generator=generator) * 2 - 4,
        }
        for name in SPEAKERS
    }
    torch.save(speakers, directory / "spk_dict.pt")


def _write_tokenizer(directory: Path) -> None:
    tokenizer = byte_tokenizer(_SPECIAL_TOKENS, context=_CONTEXT, extra_special_tokens=_NAMED_TOKENS)
    tokenizer.save_pretrained(directory)


def _model(generator: torch.Generator) -> PreTrainedModel:
    from transformers import Qwen2_5OmniConfig, Qwen2_5OmniForConditionalGeneration

    config = Qwen2_5OmniConfig(
        thinker_config=_thinker_config(), talker_config=_talker_config(), token2wav_config=_token2wav_config()
    )
    with torch.random.fork_rng(devices=[]):
        model: Any = Qwen2_5OmniForConditionalGeneration(config)
    config.architectures = ["Qwen2_5OmniForConditionalGeneration"]
    for name, parameter in sorted(model.named_parameters()):
        randomise(name, parameter.data, generator, _gain(name))
    printable_only(model.thinker.lm_head.weight.data, _TOKEN_IDS["<|im_end|>"])
    return cast("PreTrainedModel", model)


def _gain(name: str) -> float:
    if "bigvgan" not in name:
        return _GAIN
    return 0.05 if name.endswith("conv_post.weight") else 0.9  # so the waveform neither fades out nor clips


def _thinker_config() -> dict[str, Any]:
    return {
        "text_config": {
            "vocab_size": _VOCAB_SIZE,
            "hidden_size": _HIDDEN,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": _CONTEXT,
            "rope_parameters": dict(_ROPE),
            "tie_word_embeddings": False,
        },
        "audio_config": {
            "d_model": 64,
            "encoder_layers": 2,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 128,
            "num_mel_bins": 128,
            "n_window": 100,
            "output_dim": _HIDDEN,
        },
        "vision_config": {
            "depth": 2,
            "fullatt_block_indexes": [1],
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 2,
            "out_hidden_size": _HIDDEN,
        },
        **_MEDIA_TOKENS,
        "bos_token_id": _TOKEN_IDS["<|im_start|>"],
        "eos_token_id": _TOKEN_IDS["<|im_end|>"],
        "pad_token_id": _TOKEN_IDS["<|endoftext|>"],
        "user_token_id": ord("u"),
        "tie_word_embeddings": False,
    }


def _talker_config() -> dict[str, Any]:
    return {
        "embedding_size": _HIDDEN,
        "hidden_size": 96,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": _HEAD_DIM,
        "max_position_embeddings": _CONTEXT,
        "rope_parameters": dict(_ROPE),
        "vocab_size": 8448,
        **_MEDIA_TOKENS,
        "tts_text_pad_token_id": _TOKEN_IDS["<|tts_pad|>"],
        "tts_text_start_token_id": _TOKEN_IDS["<|tts_bos|>"],
        "tts_text_end_token_id": _TOKEN_IDS["<|tts_eos|>"],
    }


def _token2wav_config() -> dict[str, Any]:
    return {
        "dit_config": {
            "hidden_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 2,
            "head_dim": _HEAD_DIM,
            "emb_dim": 32,
            "look_ahead_layers": [2],
            "look_backward_layers": [0, 3],
            "num_embeds": 8448,  # a random talker emits every code of its vocabulary
            "enc_dim": 32,
            "enc_channels": [32, 32, 32, 32, 96],
            "enc_attention_channels": 16,
            "enc_se_channels": 16,
        },
        "bigvgan_config": {
            "upsample_initial_channel": 128,
            "resblock_kernel_sizes": [3, 7],
            "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5]],
        },
    }


TINY = TinyDirectory(version=1, write=_write)
build_tiny_checkpoint = TINY.build

if __name__ == "__main__":
    TINY.main(__doc__)
