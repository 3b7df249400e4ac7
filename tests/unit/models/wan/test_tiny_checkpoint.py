"""The tiny checkpoint: Diffusers loads all of it, and its seed decides its weights."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from workers.models.wan.family import CHANNELS
from workers.models.wan.tiny_checkpoint import build_tiny_checkpoint


def digests(checkpoint: Path) -> dict[str, str]:
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    return {str(path.relative_to(checkpoint)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_what_the_code_takes_as_given_is_the_real_checkpoints(tiny_wans: Callable[[int], Path]) -> None:
    from diffusers import AutoencoderKLWan, WanPipeline

    pipeline = WanPipeline.from_pretrained(tiny_wans(0), local_files_only=True)
    assert (pipeline.vae_scale_factor_spatial, pipeline.vae_scale_factor_temporal) == (8, 4)
    for transformer in (pipeline.transformer, pipeline.transformer_2):
        assert tuple(transformer.config.patch_size) == (1, 2, 2)
        assert transformer.config.in_channels == CHANNELS
        assert transformer.config.text_dim == pipeline.text_encoder.config.d_model
    statistics = AutoencoderKLWan(base_dim=8, num_res_blocks=1).config
    assert pipeline.vae.config.latents_mean == statistics.latents_mean
    assert pipeline.vae.config.latents_std == statistics.latents_std
    assert pipeline.config.boundary_ratio == 0.875
    assert pipeline.scheduler.config.flow_shift == 3.0


def test_the_seed_decides_the_weights(tiny_wans: Callable[[int], Path], tmp_path: Path) -> None:
    zero, again = digests(tiny_wans(0)), digests(build_tiny_checkpoint(tmp_path / "again", seed=0))
    one = digests(tiny_wans(1))
    assert zero == again
    changed = {name for name in zero if zero[name] != one[name]}
    assert {name for name in changed if name.endswith(".json")} == {"tiny_checkpoint.json"}
    assert len([name for name in changed if name.endswith(".safetensors")]) == 4
