"""Diffusers' ``WanPipeline``, given embeddings and noise."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


class WanReference:
    """One checkpoint's pipeline, in float32 on the CPU."""

    def __init__(self, checkpoint: Path, parts: Mapping[str, Any] | None = None) -> None:
        """``parts``: those of another pipeline, of whose texts and frames is asked the same."""
        from diffusers import WanPipeline
        from diffusers.utils import logging

        logging.disable_progress_bar()
        self.pipeline: Any = (
            WanPipeline.from_pretrained(checkpoint, local_files_only=True) if parts is None else WanPipeline(**parts)
        )
        self.pipeline.set_progress_bar_config(disable=True)

    def embeds(self, text: str) -> torch.Tensor:
        """Return the rows of a text and of the zeros behind it [512, H]."""
        with torch.no_grad():
            embeds, _ = self.pipeline.encode_prompt(text, do_classifier_free_guidance=False, max_sequence_length=512)
        rows: torch.Tensor = embeds[0]
        return rows

    def latents(
        self, text: torch.Tensor, negative: torch.Tensor | None, *, scales: tuple[float, float], seed: int, **size: int
    ) -> torch.Tensor:
        """Return the latents [C, F, h, w] of embeddings [T, H] and [U, H], from the noise of a seed.

        ``size``: height, width, num_frames and num_inference_steps.
        """
        output = self.pipeline(
            prompt_embeds=padded(text),
            negative_prompt_embeds=None if negative is None else padded(negative),
            guidance_scale=1.0 if negative is None else scales[0],
            guidance_scale_2=scales[1],
            generator=torch.Generator().manual_seed(seed),
            output_type="latent",
            **size,
        )
        latents: torch.Tensor = output.frames[0]
        return latents

    def pixels(self, latents: torch.Tensor) -> torch.Tensor:
        """Return latents [C, F, h, w] as the pipeline's own video, uint8 [F, H, W, 3]."""
        vae = self.pipeline.vae
        with torch.no_grad():
            mean = torch.tensor(vae.config.latents_mean).view(1, -1, 1, 1, 1)
            inverse = 1.0 / torch.tensor(vae.config.latents_std).view(1, -1, 1, 1, 1)
            decoded = vae.decode(latents[None] / inverse + mean, return_dict=False)[0]
            video = self.pipeline.video_processor.postprocess_video(decoded, output_type="np")[0]
        return torch.from_numpy((video * 255).round().astype("uint8"))


def padded(text: torch.Tensor) -> torch.Tensor:
    """Return embeddings [T, H] as the pipelines take them: [1, 512, H]."""
    return torch.nn.functional.pad(text, (0, 0, 0, 512 - len(text)))[None]
