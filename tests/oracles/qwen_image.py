"""Diffusers' ``QwenImagePipeline``, given embeddings and noise, with its own mistakes worked around.

``test_qwen_image_reference`` shows each mistake:

- Rows of one call get the rotary positions of the first one's size. So the oracle runs a picture at a time.
- It cuts embeddings at 512 tokens unless it is told otherwise. So the oracle tells it 1024.
- Without a VAE it takes 8 pixels to a latent, whatever the VAE's own number is. So the oracle always has the VAE.
"""

from pathlib import Path
from typing import Any

import torch

from workers.models.qwen_image.template import MAX_TEXT_TOKENS


class QwenImageReference:
    """One checkpoint's pipeline, in float32 on the CPU."""

    def __init__(self, checkpoint: Path) -> None:
        from diffusers import QwenImagePipeline
        from diffusers.utils import logging

        logging.disable_progress_bar()
        self.pipeline: Any = QwenImagePipeline.from_pretrained(checkpoint, local_files_only=True)
        self.pipeline.set_progress_bar_config(disable=True)

    def embeds(self, text: str) -> torch.Tensor:
        """Return the rows of a description [T, H]."""
        with torch.no_grad():
            embeds, mask = self.pipeline.encode_prompt(text, max_sequence_length=MAX_TEXT_TOKENS)
        assert mask is None
        rows: torch.Tensor = embeds[0]
        return rows

    def latents(
        self,
        text: torch.Tensor,
        negative: torch.Tensor | None,
        *,
        height: int,
        width: int,
        steps: int,
        scale: float,
        seed: int,
    ) -> torch.Tensor:
        """Return the latents [N, 64] of embeddings [T, H] and [U, H], from the noise of a seed."""
        output = self.pipeline(
            prompt_embeds=text[None],
            negative_prompt_embeds=None if negative is None else negative[None],
            true_cfg_scale=scale,
            height=height,
            width=width,
            num_inference_steps=steps,
            generator=torch.Generator().manual_seed(seed),
            max_sequence_length=MAX_TEXT_TOKENS,
            output_type="latent",
        )
        latents: torch.Tensor = output.images[0]
        return latents

    def pixels(self, latents: torch.Tensor, *, height: int, width: int) -> torch.Tensor:
        """Return latents [N, 64] as the pipeline's own picture, uint8 [H, W, 3]: as it ends without ``latent``."""
        pipeline = self.pipeline
        with torch.no_grad():
            frames = pipeline._unpack_latents(latents[None], height, width, pipeline.vae_scale_factor)
            mean = torch.tensor(pipeline.vae.config.latents_mean).view(1, -1, 1, 1, 1)
            inverse = 1.0 / torch.tensor(pipeline.vae.config.latents_std).view(1, -1, 1, 1, 1)
            decoded = pipeline.vae.decode(frames / inverse + mean, return_dict=False)[0][:, :, 0]
            picture = pipeline.image_processor.postprocess(decoded, output_type="np")[0]
        return torch.from_numpy((picture * 255).round().astype("uint8"))
