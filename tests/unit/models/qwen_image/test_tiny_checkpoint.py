"""The tiny checkpoint: Diffusers loads all of it, and its seed decides its weights."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from workers.models.qwen_image.family import TOKEN
from workers.models.qwen_image.tiny_checkpoint import build_tiny_checkpoint


def digests(checkpoint: Path) -> dict[str, str]:
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    return {str(path.relative_to(checkpoint)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_what_the_code_takes_as_given_is_the_real_checkpoints(tiny_qwen_images: Callable[[int], Path]) -> None:
    from diffusers import AutoencoderKLQwenImage, QwenImagePipeline

    pipeline = QwenImagePipeline.from_pretrained(tiny_qwen_images(0), local_files_only=True)
    assert pipeline.vae_scale_factor == 8
    assert (pipeline.transformer.config.patch_size, pipeline.transformer.config.in_channels) == (2, TOKEN)
    statistics = AutoencoderKLQwenImage(base_dim=8, num_res_blocks=1).config
    assert pipeline.vae.config.latents_mean == statistics.latents_mean
    assert pipeline.vae.config.latents_std == statistics.latents_std
    assert pipeline.text_encoder.config.text_config.hidden_size == pipeline.transformer.config.joint_attention_dim
    assert pipeline.scheduler.config.use_dynamic_shifting


def test_the_seed_decides_the_weights(tiny_qwen_images: Callable[[int], Path], tmp_path: Path) -> None:
    zero, again = digests(tiny_qwen_images(0)), digests(build_tiny_checkpoint(tmp_path / "again", seed=0))
    one = digests(tiny_qwen_images(1))
    assert zero == again
    changed = {name for name in zero if zero[name] != one[name]}
    assert {Path(name).suffix for name in changed} == {".safetensors", ".json"}
    assert {name for name in changed if name.endswith(".json")} == {"tiny_checkpoint.json"}
    assert len(changed) == 4
