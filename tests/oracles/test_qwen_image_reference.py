"""The mistakes of Diffusers' QwenImagePipeline 0.40 that its oracle, and omni-jobs, work around."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.oracles.qwen_image import QwenImageReference
from workers.models.pictures.schedule import read_euler_config
from workers.models.qwen_image.schedule import qwen_schedule
from workers.models.qwen_image.size import Size

H = 128


@pytest.fixture(scope="module")
def checkpoint(tiny_qwen_images: Callable[[int], Path]) -> Path:
    return tiny_qwen_images(0)


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> QwenImageReference:
    return QwenImageReference(checkpoint)


def embeds(tokens: int) -> torch.Tensor:
    return torch.randn(1, tokens, H, generator=torch.Generator().manual_seed(tokens))


def test_rows_of_several_sizes_get_the_positions_of_the_first(reference: QwenImageReference) -> None:
    """4 x 6 and 6 x 4 tokens: the second row's result is that of the first one's size."""
    transformer = reference.pipeline.transformer
    latents = torch.randn(2, 24, 64, generator=torch.Generator().manual_seed(0))

    def forward(rows: list[int], shapes: list[tuple[int, int]]) -> torch.Tensor:
        output: torch.Tensor = transformer(
            hidden_states=latents[rows],
            timestep=torch.full((len(rows),), 0.5),
            encoder_hidden_states=embeds(5).expand(len(rows), -1, -1),
            img_shapes=[[(1, *shape)] for shape in shapes],
            return_dict=False,
        )[0]
        return output

    with torch.no_grad():
        mixed = forward([0, 1], [(4, 6), (6, 4)])
        right, wrong = forward([1], [(6, 4)]), forward([1], [(4, 6)])
    assert torch.allclose(mixed[1], wrong[0], atol=1e-5)
    assert (mixed[1] - right[0]).abs().max() > 0.01


def run(reference: QwenImageReference, tokens: torch.Tensor, **arguments: Any) -> torch.Tensor:
    given = {"height": 32, "width": 32, "num_inference_steps": 2, "true_cfg_scale": 1.0} | arguments
    latents: torch.Tensor = reference.pipeline(
        prompt_embeds=tokens, generator=torch.Generator().manual_seed(0), output_type="latent", **given
    ).images
    return latents


def test_embeddings_are_cut_at_512_tokens(reference: QwenImageReference) -> None:
    long = embeds(520)
    assert torch.equal(run(reference, long), run(reference, long[:, :512]))
    assert not torch.equal(run(reference, long), run(reference, long, max_sequence_length=1024))


def test_without_a_vae_a_latent_has_8_pixels_whatever_the_vae_says(checkpoint: Path) -> None:
    from diffusers import AutoencoderKLQwenImage, QwenImagePipeline

    vae = AutoencoderKLQwenImage(base_dim=8, num_res_blocks=1, dim_mult=[1, 2, 4], temperal_downsample=[False, True])
    parts = QwenImagePipeline.from_pretrained(checkpoint, local_files_only=True).components
    assert QwenImagePipeline(**{**parts, "vae": vae}).vae_scale_factor == 4
    assert QwenImagePipeline(**{**parts, "vae": None}).vae_scale_factor == 8


def test_a_single_step_is_not_a_number(reference: QwenImageReference, checkpoint: Path) -> None:
    with pytest.warns(RuntimeWarning, match="invalid value"):
        assert run(reference, embeds(5), num_inference_steps=1).isnan().all()
    assert np.isfinite(qwen_schedule(read_euler_config(checkpoint), Size(32, 32), 1).sigmas.numpy()).all()
