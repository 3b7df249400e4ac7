"""Build a complete tiny GLM-Image checkpoint with random weights, for tests and the demo.

    python -m workers.models.glm_image.tiny_checkpoint DIR --seed 0

It has the folders of the real checkpoint, in the layout of Diffusers, and is built in a few seconds. Its pictures are
noise.

Values that the code takes as given are the real checkpoint's: the codebook of 16,384 image tokens and the ids around
it, the order of the tokenizer, patches of 2 latents and 8 pixels, 16 latent channels. Head dimensions are 32, the
least that attention on CPUs takes.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from workers.models.tiny_directory import BYTES, TinyDirectory, randomise, write_json

CODEBOOK = 16_384
IMAGE_TOKENS = 16_512  # the codebook, the two marks of a picture, and ids that nothing uses
_SPECIAL_TOKENS = ["<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>"]
_SPECIAL_TOKENS += ["<|assistant|>", "<|image|>"]
_ROLES: dict[str, Any] = {
    "bos_token": "<|dit_token_16384|>",
    "eos_token": "<|dit_token_16385|>",
    "pad_token": "<|endoftext|>",
    "extra_special_tokens": {"image_token": "<|image|>", "grid_bos_token": "<sop>", "grid_eos_token": "<eop>"},
}
_TOKEN_IDS = {token: IMAGE_TOKENS + BYTES + n for n, token in enumerate(_SPECIAL_TOKENS)}
_VOCAB_SIZE = 16_832  # the embedding table is padded past the tokenizer, as the real one is
_HEAD_DIM = 32
_CONTEXT = 16_384

# Weights have the deviation gain / sqrt(fan in), because the default 0.02 makes all pictures alike. With these the
# latents keep about the size of noise, and the colours fill their range.
_GAINS = {"vision_language_encoder": 1.5, "text_encoder": 1.0, "transformer": 1.0, "vae": 1.5}

# A text is itself, and a picture a placeholder between the two marks of a picture.
_CHAT_TEMPLATE = (
    "{%- for message in messages -%}{%- if message.content is string -%}{{ message.content }}{%- else -%}"
    "{%- for item in message.content -%}{%- if item.type == 'image' -%}"
    "<|dit_token_16384|><|image|><|dit_token_16385|>"
    "{%- elif item.type == 'text' -%}{{ item.text }}{%- endif -%}{%- endfor -%}{%- endif -%}{%- endfor -%}"
)


def _write(directory: Path, seed: int) -> None:
    diffusers, transformers = _libraries()
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        pipeline = diffusers.GlmImagePipeline(
            tokenizer=transformers.ByT5Tokenizer(),
            processor=_processor(),
            text_encoder=transformers.T5EncoderModel(_glyph_config()),
            vision_language_encoder=_language_model(),
            vae=diffusers.AutoencoderKL(**_vae_config()),
            transformer=diffusers.GlmImageTransformer2DModel(**_transformer_config()),
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(
                base_image_seq_len=256,
                base_shift=0.25,
                max_shift=0.75,
                use_dynamic_shifting=True,
                time_shift_type="linear",
            ),
        )
    for name, gain in _GAINS.items():
        for parameter_name, parameter in sorted(getattr(pipeline, name).named_parameters()):
            _randomise(parameter_name, parameter.data, generator, gain)
    pipeline.save_pretrained(directory)
    write_json(
        directory / "vision_language_encoder" / "generation_config.json",
        {
            "do_sample": True,
            "temperature": 0.9,
            "top_p": 0.75,
            "eos_token_id": CODEBOOK + 1,
            "pad_token_id": CODEBOOK + 1,
        },
    )


def _randomise(name: str, weight: torch.Tensor, generator: torch.Generator, gain: float) -> None:
    if name.endswith(("embed_tokens.weight", "shared.weight", "prior_token_embedding.weight")):
        weight.normal_(generator=generator)
    else:
        randomise(name, weight, generator, gain)


def _libraries() -> tuple[Any, Any]:
    """Return the modules diffusers and transformers, whose classes have incomplete types."""
    return import_module("diffusers"), import_module("transformers")


def _processor() -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    _, transformers = _libraries()
    image_tokens = [f"<|dit_token_{n}|>" for n in range(IMAGE_TOKENS)]
    vocabulary = {token: n for n, token in enumerate(image_tokens)}
    vocabulary |= {symbol: IMAGE_TOKENS + byte for byte, symbol in bytes_to_unicode().items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary | _TOKEN_IDS, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (*image_tokens, *_SPECIAL_TOKENS)])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        padding_side="left",
        model_max_length=_CONTEXT,
        **_ROLES,
    )
    return transformers.GlmImageProcessor(
        image_processor=transformers.GlmImageImageProcessor(
            patch_size=16, merge_size=1, temporal_patch_size=1, size={"shortest_edge": 64**2, "longest_edge": 2048**2}
        ),
        tokenizer=fast,
        chat_template=_CHAT_TEMPLATE,
    )


def _language_model() -> Any:
    _, transformers = _libraries()
    config = transformers.GlmImageConfig(
        text_config={
            "vocab_size": _VOCAB_SIZE,
            "hidden_size": 2 * _HEAD_DIM,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": _CONTEXT,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [2, 3, 3],
            },
            "vision_vocab_size": IMAGE_TOKENS,
            "pad_token_id": _TOKEN_IDS["<|endoftext|>"],
            "eos_token_id": CODEBOOK + 1,
        },
        vision_config={"depth": 1, "hidden_size": 32, "num_heads": 1, "intermediate_size": 64, "image_size": 256},
        vq_config={"embed_dim": 8, "num_embeddings": CODEBOOK, "latent_channels": 32},
        image_token_id=_TOKEN_IDS["<|image|>"],
        image_start_token_id=CODEBOOK,
        image_end_token_id=CODEBOOK + 1,
    )
    config.architectures = ["GlmImageForConditionalGeneration"]
    return transformers.GlmImageForConditionalGeneration(config)


def _glyph_config() -> Any:
    from transformers import T5Config

    return T5Config(
        vocab_size=384, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, feed_forward_proj="gated-gelu"
    )


def _transformer_config() -> dict[str, Any]:
    return {
        "patch_size": 2,
        "in_channels": 16,
        "out_channels": 16,
        "num_layers": 2,
        "attention_head_dim": _HEAD_DIM,
        "num_attention_heads": 2,
        "text_embed_dim": 32,
        "time_embed_dim": 32,
        "condition_dim": 16,
        "prior_vq_quantizer_codebook_size": CODEBOOK,
    }


def _vae_config() -> dict[str, Any]:
    return {
        "in_channels": 3,
        "out_channels": 3,
        "down_block_types": ["DownEncoderBlock2D"] * 4,
        "up_block_types": ["UpDecoderBlock2D"] * 4,
        "block_out_channels": [8, 8, 16, 16],
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "latent_channels": 16,
        "sample_size": 128,
        "scaling_factor": 1.0,
        "latents_mean": [round(0.05 * n - 0.4, 2) for n in range(16)],
        "latents_std": [round(0.8 + 0.03 * n, 2) for n in range(16)],
        "use_quant_conv": False,
        "use_post_quant_conv": False,
        "mid_block_add_attention": False,
    }


TINY = TinyDirectory(version=2, write=_write)
build_tiny_checkpoint = TINY.build

if __name__ == "__main__":
    TINY.main(__doc__)
