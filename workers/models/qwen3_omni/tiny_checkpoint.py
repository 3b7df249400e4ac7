"""Build a complete tiny Qwen3-Omni checkpoint with random weights, for tests and the demo.

    python -m workers.models.qwen3_omni.tiny_checkpoint DIR --seed 0

It is built in a few seconds. Like the real checkpoint it has the thinker and the talker with experts, the talker's
code predictor and code2wav under their prefixes, a tokenizer, a chat template and a preprocessor. Its text is
printable noise, and its speech is audible noise.

Values that the code takes as given are the real checkpoint's: sixteen codebooks, 1,024 tokens of the talker behind
those of the first codebook, patch sizes, 1,920 samples per frame of codes, a window of 72 frames. All head dimensions
of what vLLM runs are 32, the least that attention on CPUs takes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from workers.models.tiny_directory import BYTES, TinyDirectory, byte_tokenizer, printable_only, randomise, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SPEAKERS = ("aiden", "chelsie", "ethan")

# In the order of the real tokenizer, after the 256 byte symbols.
_SPECIAL_TOKENS = [
    *(f"<|{name}|>" for name in ("endoftext", "im_start", "im_end", "vision_start", "vision_end")),
    *(f"<|{name}|>" for name in ("image_pad", "video_pad", "audio_start", "audio_end")),
    *("<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<|audio_pad|>"),
]
_TOKEN_IDS = {token: BYTES + n for n, token in enumerate(_SPECIAL_TOKENS)}
_ROLES = ("system", "user", "assistant")  # one token each, as the talker's prompt needs
_VOCAB_SIZE = 320  # the embedding table is padded past the tokenizer, as the real one is

# The names by which Transformers' processor finds its placeholders.
_NAMED_TOKENS = {
    "image_token": "<|image_pad|>",
    "audio_token": "<|audio_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}

# What Qwen3-Omni's own template writes for messages without tools. It adds no system message.
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif content['type'] == 'audio' or 'audio' in content or 'audio_url' in content %}"
    "<|audio_start|><|audio_pad|><|audio_end|>"
    "{% elif content['type'] == 'video' or 'video' in content %}"
    "<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_PREPROCESSOR: dict[str, Any] = {
    "processor_class": "Qwen3OmniMoeProcessor",
    "image_processor_type": "Qwen2VLImageProcessor",
    "video_processor_type": "Qwen2VLVideoProcessor",
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "min_pixels": 4 * 32 * 32,
    "max_pixels": 1024 * 32 * 32,  # 1024 tokens, because the real 12,544 exceed the tiny context
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 128,
    "sampling_rate": 16000,
    "hop_length": 160,
    "chunk_length": 30,
    "n_samples": 480000,
    "nb_max_frames": 3000,
    "n_fft": 400,
    "dither": 0.0,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
}

_HIDDEN = 128  # of the thinker, and so of the rows that the talker takes
_TALKER_HIDDEN = 64
_CODEBOOKS = 16
_CODES = 256  # of each codebook; 2,048 in the real checkpoint
_CONTEXT = 8192
_ROPE = {"rope_type": "default", "rope_theta": 1_000_000.0, "mrope_section": [6, 5, 5], "mrope_interleaved": True}
_PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
_GAIN = 1.5  # weights have the deviation _GAIN / sqrt(fan in), because the default 0.02 gives silence


def _write(directory: Path, seed: int) -> None:
    model = _model(torch.Generator().manual_seed(seed))
    model.save_pretrained(directory)
    (directory / "model.safetensors").chmod(0o644)
    tokenizer = byte_tokenizer(
        _SPECIAL_TOKENS, whole_words=_ROLES, context=_CONTEXT, extra_special_tokens=_NAMED_TOKENS
    )
    tokenizer.save_pretrained(directory)
    write_json(directory / "generation_config.json", {"eos_token_id": _TOKEN_IDS["<|im_end|>"], "do_sample": False})
    write_json(directory / "preprocessor_config.json", _PREPROCESSOR)
    write_json(directory / "chat_template.json", {"chat_template": _CHAT_TEMPLATE})


def _model(generator: torch.Generator) -> PreTrainedModel:
    from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

    roles, talker = _role_ids(), _talker_config()
    config = Qwen3OmniMoeConfig(
        thinker_config=_thinker_config(),
        talker_config=talker,
        code2wav_config=_code2wav_config(),
        im_start_token_id=_TOKEN_IDS["<|im_start|>"],
        im_end_token_id=_TOKEN_IDS["<|im_end|>"],
        tts_pad_token_id=_TOKEN_IDS["<tts_pad>"],
        tts_bos_token_id=_TOKEN_IDS["<tts_text_bos>"],
        tts_eos_token_id=_TOKEN_IDS["<tts_text_eod>"],
        system_token_id=roles["system"],
        user_token_id=roles["user"],
        assistant_token_id=roles["assistant"],
    )
    with torch.random.fork_rng(devices=[]):
        model: Any = Qwen3OmniMoeForConditionalGeneration(config)
    config.architectures = ["Qwen3OmniMoeForConditionalGeneration"]
    for name, parameter in sorted(model.named_parameters()):
        if name.endswith(("gamma", "layer_scale.scale")):
            parameter.data.fill_(0.5)  # their initial values would hide the layers that they scale
        elif ".experts." in name:
            parameter.data.normal_(std=_GAIN / parameter.shape[-1] ** 0.5, generator=generator)
        else:
            randomise(name, parameter.data, generator, _gain(name))
    printable_only(model.thinker.lm_head.weight.data, _TOKEN_IDS["<|im_end|>"])
    model.talker.codec_head.weight.data[talker["codec_eos_token_id"]] *= 0.7  # so that it seldom ends at once
    return cast("PreTrainedModel", model)


def _role_ids() -> dict[str, int]:
    """Return the ids that the tokenizer gives the words of roles."""
    tokenizer = byte_tokenizer(_SPECIAL_TOKENS, whole_words=_ROLES, context=_CONTEXT)
    return {role: tokenizer.convert_tokens_to_ids(role) for role in _ROLES}


def _gain(name: str) -> float:
    return 0.6 if name.startswith("code2wav.decoder") else _GAIN  # so the waveform neither fades out nor clips


def _thinker_config() -> dict[str, Any]:
    return {
        "text_config": {
            "vocab_size": _VOCAB_SIZE,
            "hidden_size": _HIDDEN,
            "intermediate_size": 256,
            "moe_intermediate_size": 64,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
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
            "downsample_hidden_size": 32,
            "output_dim": _HIDDEN,
        },
        "vision_config": {
            "depth": 2,
            "deepstack_visual_indexes": [0],
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 2,
            "num_position_embeddings": 256,
            "image_size": 256,  # vLLM reads this and the next instead
            "apply_vit_abs_pos_embed": True,
            "out_hidden_size": _HIDDEN,
        },
        "position_id_per_seconds": 13,
        "audio_token_id": _TOKEN_IDS["<|audio_pad|>"],
        "image_token_id": _TOKEN_IDS["<|image_pad|>"],
        "video_token_id": _TOKEN_IDS["<|video_pad|>"],
        "audio_start_token_id": _TOKEN_IDS["<|audio_start|>"],
        "audio_end_token_id": _TOKEN_IDS["<|audio_end|>"],
        "vision_start_token_id": _TOKEN_IDS["<|vision_start|>"],
        "vision_end_token_id": _TOKEN_IDS["<|vision_end|>"],
        "user_token_id": _role_ids()["user"],
    }


def _talker_config() -> dict[str, Any]:
    special = {
        name: _CODES + 100 + n  # behind the codes of the first codebook
        for n, name in enumerate(("codec_pad_id", "codec_bos_id", "codec_eos_token_id"))
    }
    thinking = {
        name: _CODES + 107 + n
        for n, name in enumerate(("codec_nothink_id", "codec_think_bos_id", "codec_think_eos_id"))
    }
    return {
        "text_config": {
            "vocab_size": _CODES + 1024,
            "hidden_size": _TALKER_HIDDEN,
            "intermediate_size": 96,  # of the projections, too
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 64,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": _CONTEXT,
            "rope_parameters": dict(_ROPE),
        },
        "code_predictor_config": {
            "vocab_size": _CODES,
            "hidden_size": _TALKER_HIDDEN,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "num_code_groups": _CODEBOOKS,
            "max_position_embeddings": 1024,
            "rope_parameters": dict(_PLAIN_ROPE),
        },
        "num_code_groups": _CODEBOOKS,
        "thinker_hidden_size": _HIDDEN,
        "accept_hidden_layer": 2,
        **special,
        **thinking,
        "speaker_id": {name: _CODES + 253 + n for n, name in enumerate(SPEAKERS)},
        "spatial_merge_size": 2,
        "position_id_per_seconds": 13,
        "audio_token_id": _TOKEN_IDS["<|audio_pad|>"],
        "image_token_id": _TOKEN_IDS["<|image_pad|>"],
        "video_token_id": _TOKEN_IDS["<|video_pad|>"],
        "audio_start_token_id": _TOKEN_IDS["<|audio_start|>"],
        "vision_start_token_id": _TOKEN_IDS["<|vision_start|>"],
    }


def _code2wav_config() -> dict[str, Any]:
    return {
        "codebook_size": _CODES,
        "num_quantizers": _CODEBOOKS,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "rope_parameters": dict(_PLAIN_ROPE),
        "decoder_dim": 64,
    }


TINY = TinyDirectory(version=1, write=_write)
build_tiny_checkpoint = TINY.build

if __name__ == "__main__":
    TINY.main(__doc__)
