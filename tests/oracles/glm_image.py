"""The oracle of GLM-Image: the pipeline of Diffusers, and its language model of Transformers, on a checkpoint.

The pipeline's mistakes that concern one picture are put right here; tests/oracles/test_glm_image.py shows each, and
those that concern several pictures at once, which are drawn one by one here.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, GlmImagePipeline
from PIL import Image

Pictures = Sequence[Image.Image]
NDArray = np.ndarray[Any, np.dtype[np.uint8]]


class UnshiftedTimes(FlowMatchEulerDiscreteScheduler):  # type: ignore[misc]
    """The scheduler as it was before Diffusers 0.40: the times that the pipeline gives it are those it has."""

    def set_timesteps(
        self,
        num_inference_steps: int | None = None,
        device: Any = None,
        sigmas: Any = None,
        mu: float | None = None,
        timesteps: Any = None,
    ) -> None:
        super().set_timesteps(num_inference_steps, device, sigmas, mu, timesteps)
        self.timesteps = torch.as_tensor(timesteps, dtype=torch.float32)


class GlmImageReference:
    """Diffusers' pipeline in float32 on the CPU."""

    def __init__(self, checkpoint: Path) -> None:
        self.pipeline: Any = GlmImagePipeline.from_pretrained(checkpoint)
        self.pipeline.set_progress_bar_config(disable=True)
        self.pipeline.scheduler = UnshiftedTimes.from_config(self.pipeline.scheduler.config)

    # The language model

    def prompt(self, text: str, height: int, width: int, pictures: Pictures = ()) -> Any:
        """The language model's inputs: ``input_ids``, and ``image_grid_thw`` of pictures, target and preview."""
        images = [{"type": "image", "image": picture} for picture in pictures]
        return self.pipeline.processor.apply_chat_template(
            [[{"role": "user", "content": [*images, {"type": "text", "text": text}]}]],
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            processor_kwargs={"target_h": height, "target_w": width},
        )

    def tokens(self, text: str, height: int, width: int, pictures: Pictures = ()) -> list[int]:
        """All image tokens of a picture, the preview's first, as the language model writes them greedily."""
        inputs = self.prompt(text, height, width, pictures)
        language_model = self.pipeline.vision_language_encoder
        language_model.model.rope_deltas = None  # of another prompt
        # A trained model ends a picture where it ends; a random one must be kept from ending it before.
        no_image_tokens = list(range(16_384, language_model.config.text_config.vision_vocab_size))
        output = language_model.generate(
            **inputs,
            suppress_tokens=no_image_tokens,
            max_new_tokens=int(inputs["image_grid_thw"][len(pictures) :].prod(dim=-1).sum()),
            do_sample=False,
        )
        return [int(token) for token in output[0, inputs["input_ids"].shape[1] :]]

    @torch.inference_mode()
    def source_ids(self, pictures: Pictures) -> list[torch.Tensor]:
        """The image tokens of each of the pictures, int64 [h, w], which go through the vision tower together."""
        inputs = self.prompt("x", 64, 64, pictures)
        grids = inputs["image_grid_thw"][: len(pictures)]
        language_model = self.pipeline.vision_language_encoder
        token_ids = language_model.get_image_tokens(
            language_model.get_image_features(inputs["pixel_values"], grids).pooler_output
        )
        split = token_ids.split(grids.prod(dim=-1).tolist())
        return [ids.view(*grid[1:]) for ids, grid in zip(split, grids.tolist(), strict=True)]

    # The transformer and the VAE

    def latents(self, text: str, token_ids: torch.Tensor, height: int, width: int, **options: Any) -> torch.Tensor:
        """Latents float32 [16, h, w] of a picture with these image tokens int64 [n]."""
        latents: torch.Tensor = self._draw(text, token_ids, height, width, output_type="latent", **options)
        return latents

    def picture(self, text: str, token_ids: torch.Tensor, height: int, width: int, **options: Any) -> NDArray:
        """The picture uint8 [height, width, 3]."""
        return np.asarray(self._draw(text, token_ids, height, width, output_type="pil", **options))

    def _draw(
        self,
        text: str,
        token_ids: torch.Tensor,
        height: int,
        width: int,
        seed: int = 0,
        pictures: Pictures = (),
        **options: Any,
    ) -> Any:
        if pictures:
            options |= self._of_sources(pictures)
        return self.pipeline(
            prompt=text,
            height=height,
            width=width,
            prior_token_ids=self.upsampled(token_ids, height, width),
            generator=torch.Generator().manual_seed(seed),
            **options,
        ).images[0]

    def _of_sources(self, pictures: Pictures) -> dict[str, Any]:
        """What the pipeline takes of source pictures, each brought to the size that its tokens have."""
        found = self.source_ids(pictures)
        sizes = [(32 * ids.shape[0], 32 * ids.shape[1]) for ids in found]
        return {
            "image": [
                picture.resize((width, height), Image.Resampling.LANCZOS)
                for picture, (height, width) in zip(pictures, sizes, strict=True)
            ],
            "prior_token_image_ids": [
                torch.cat([self.upsampled(ids, *size)[0] for ids, size in zip(found, sizes, strict=True)])
            ],
            "source_image_grid_thw": [torch.tensor([[1, height // 16, width // 16] for height, width in sizes])],
        }

    def upsampled(self, token_ids: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """The image token of each patch, int64 [1, 4 n]."""
        patches: torch.Tensor = self.pipeline._upsample_token_ids(token_ids, height // 32, width // 32)
        return patches
