"""The mistakes of GLM-Image's reference, Diffusers 0.40, are shown here, so that a version without them is noticed."""

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from PIL import Image

from tests.oracles.glm_image import GlmImageReference
from tests.services.checkpoint import TinyCheckpoints

SIZE = 64, 96
TOKEN_IDS = torch.arange(6) * 2500


@pytest.fixture(scope="module")
def reference(tiny_glm_images: TinyCheckpoints) -> GlmImageReference:
    return GlmImageReference(tiny_glm_images(0))


def test_its_scheduler_drops_the_times_that_the_pipeline_gives_it(reference: GlmImageReference) -> None:
    given = torch.tensor([1000.0, 750.0, 500.0, 250.0])
    theirs = FlowMatchEulerDiscreteScheduler.from_config(reference.pipeline.scheduler.config)
    for scheduler in (theirs, reference.pipeline.scheduler):
        scheduler.set_timesteps(timesteps=given.tolist(), sigmas=(given / 1000).tolist(), mu=0.5)
    assert torch.equal(reference.pipeline.scheduler.timesteps, given)
    assert torch.equal(reference.pipeline.scheduler.sigmas, theirs.sigmas)
    assert (theirs.timesteps - given).abs().max() > 50


def test_it_refuses_embeddings_of_a_prompt_with_glyph_texts(reference: GlmImageReference) -> None:
    prompt, negative = reference.pipeline.encode_prompt("A sign 'Open'", True, dtype=torch.float32)
    assert prompt.shape != negative.shape
    with pytest.raises(ValueError, match="must have the same shape"):
        reference.pipeline(
            prompt_embeds=prompt,
            negative_prompt_embeds=negative,
            prior_token_ids=reference.upsampled(TOKEN_IDS, *SIZE),
            height=SIZE[0],
            width=SIZE[1],
        )


def test_a_shorter_text_of_a_batch_is_padded_and_the_padding_is_seen(reference: GlmImageReference) -> None:
    texts = ["A sign 'Open'", "A sign 'Closed until the end of the year'"]
    generators = [torch.Generator().manual_seed(n) for n in range(2)]
    options = {"num_inference_steps": 2, "guidance_scale": 1.0}
    both = reference.pipeline(
        prompt=texts,
        height=SIZE[0],
        width=SIZE[1],
        prior_token_ids=reference.upsampled(TOKEN_IDS, *SIZE).repeat(2, 1),
        generator=generators,
        output_type="latent",
        **options,
    ).images
    alone = [reference.latents(text, TOKEN_IDS, *SIZE, seed=n, **options) for n, text in enumerate(texts)]
    assert (both[1] - alone[1]).abs().max() < 1e-5  # the longer one
    assert (both[0] - alone[0]).abs().max() > 0.01


def test_its_mask_only_adds_one_to_the_scores_of_text(reference: GlmImageReference) -> None:
    """A padded text under the transformer's own mask gives another result than the text alone."""
    generator = torch.Generator().manual_seed(0)
    text = torch.randn(1, 5, 32, generator=generator)
    padded = torch.cat([text, torch.zeros(1, 7, 32)], dim=1)
    inputs = {
        "hidden_states": torch.randn(1, 16, 8, 12, generator=generator),
        "prior_token_id": reference.upsampled(TOKEN_IDS, *SIZE),
        "prior_token_drop": torch.zeros(1, 24, dtype=torch.bool),
        "timestep": torch.tensor([500.0]),
        "target_size": torch.tensor([SIZE], dtype=torch.float32),
        "crop_coords": torch.zeros(1, 2),
    }
    with torch.inference_mode():
        alone = reference.pipeline.transformer(encoder_hidden_states=text, **inputs).sample
        mask = torch.tensor([[1] * 5 + [0] * 7])
        masked = reference.pipeline.transformer(encoder_hidden_states=padded, attention_mask=mask, **inputs).sample
    assert (masked - alone).abs().max() > 0.01


# Of source pictures


def drawn(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def test_it_cannot_encode_a_source_picture(reference: GlmImageReference) -> None:
    """It joins the pictures' states along their channels, where Transformers 5.19 wants a list of them."""
    for pictures, message in (([drawn(64, 96)], "32 channels"), ([drawn(64, 96), drawn(96, 64)], "must match")):
        with pytest.raises(RuntimeError, match=message):
            reference.pipeline.generate_prior_tokens(prompt="x", image=[pictures], height=64, width=64)
    assert [ids.shape for ids in reference.source_ids([drawn(64, 96), drawn(96, 64)])] == [(2, 3), (3, 2)]


def test_it_fails_for_a_source_picture_whose_sides_are_no_multiples_of_32(reference: GlmImageReference) -> None:
    """Its VAE takes the picture in multiples of 16 pixels, the language model in multiples of 32."""
    picture = drawn(80, 64)
    (ids,) = reference.source_ids([picture])
    assert ids.shape == (2, 2)
    with pytest.raises(RuntimeError, match=r"size of tensor a \(20\) must match the size of tensor b \(16\)"):
        reference.pipeline(
            prompt="x",
            image=[picture],
            height=SIZE[0],
            width=SIZE[1],
            prior_token_ids=reference.upsampled(TOKEN_IDS, *SIZE),
            prior_token_image_ids=[reference.upsampled(ids, 64, 64)[0]],
            source_image_grid_thw=[torch.tensor([[1, 4, 4]])],
        )
