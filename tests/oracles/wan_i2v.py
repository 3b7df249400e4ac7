"""Diffusers' ``WanImageToVideoPipeline``, given embeddings, a picture and noise."""

from pathlib import Path
from typing import Any

import torch
from PIL import Image

from tests.oracles.wan import WanReference, padded


class WanPictureReference:
    """One checkpoint's pipeline, in float32 on the CPU. ``plain``: for its texts and frames."""

    def __init__(self, checkpoint: Path) -> None:
        from diffusers import WanImageToVideoPipeline

        self.pipeline: Any = WanImageToVideoPipeline.from_pretrained(checkpoint, local_files_only=True)
        self.pipeline.set_progress_bar_config(disable=True)
        # Without the package ftfy this pipeline reads no text, as WanPipeline does.
        both = ("tokenizer", "text_encoder", "vae", "scheduler", "transformer", "transformer_2")
        self.plain = WanReference(checkpoint, {name: self.pipeline.components[name] for name in both})

    def begin(self, picture: Image.Image, *, height: int, width: int, num_frames: int) -> torch.Tensor:
        """Return what the transformers see beside the latents of a video that begins with a picture."""
        shades = self.pipeline.video_processor.preprocess(picture, height=height, width=width).float()
        with torch.no_grad():
            _, seen = self.pipeline.prepare_latents(
                shades, 1, 16, height, width, num_frames, torch.float32, torch.device("cpu")
            )
        begin: torch.Tensor = seen[0]
        return begin

    def latents(
        self,
        text: torch.Tensor,
        negative: torch.Tensor | None,
        picture: Image.Image,
        *,
        scales: tuple[float, float],
        seed: int,
        **size: int,
    ) -> torch.Tensor:
        """Return the latents [C, F, h, w] of embeddings [T, H] and [U, H] and a picture, from the noise of a seed.

        ``size``: height, width, num_frames and num_inference_steps.
        """
        output = self.pipeline(
            image=picture,
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
