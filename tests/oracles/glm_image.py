"""The oracle of GLM-Image: the pipeline of Diffusers, and its language model of Transformers, on a checkpoint.

The pipeline's mistakes that concern one picture are put right here; tests/oracles/test_glm_image.py shows each, and
those that concern several pictures at once, which are drawn one by one here.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, GlmImagePipeline

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

    def prompt(self, text: str, height: int, width: int) -> Any:
        """The language model's inputs: ``input_ids``, and ``image_grid_thw`` of target and preview."""
        return self.pipeline.processor.apply_chat_template(
            [[{"role": "user", "content": [{"type": "text", "text": text}]}]],
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            processor_kwargs={"target_h": height, "target_w": width},
        )

    def tokens(self, text: str, height: int, width: int) -> list[int]:
        """All image tokens of a picture, the preview's first, as the language model writes them greedily."""
        inputs = self.prompt(text, height, width)
        language_model = self.pipeline.vision_language_encoder
        language_model.model.rope_deltas = None  # of another prompt
        # A trained model ends a picture where it ends; a random one must be kept from ending it before.
        no_image_tokens = list(range(16_384, language_model.config.text_config.vision_vocab_size))
        output = language_model.generate(
            **inputs,
            suppress_tokens=no_image_tokens,
            max_new_tokens=int(inputs["image_grid_thw"].prod(dim=-1).sum()),
            do_sample=False,
        )
        return [int(token) for token in output[0, inputs["input_ids"].shape[1] :]]

    # The transformer and the VAE

    def latents(self, text: str, token_ids: torch.Tensor, height: int, width: int, **options: Any) -> torch.Tensor:
        """Latents float32 [16, h, w] of a picture with these image tokens int64 [n]."""
        latents: torch.Tensor = self._draw(text, token_ids, height, width, output_type="latent", **options)
        return latents

    def picture(self, text: str, token_ids: torch.Tensor, height: int, width: int, **options: Any) -> NDArray:
        """The picture uint8 [height, width, 3]."""
        return np.asarray(self._draw(text, token_ids, height, width, output_type="pil", **options))

    def _draw(self, text: str, token_ids: torch.Tensor, height: int, width: int, seed: int = 0, **options: Any) -> Any:
        return self.pipeline(
            prompt=text,
            height=height,
            width=width,
            prior_token_ids=self.upsampled(token_ids, height, width),
            generator=torch.Generator().manual_seed(seed),
            **options,
        ).images[0]

    def upsampled(self, token_ids: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """The image token of each patch, int64 [1, 4 n]."""
        patches: torch.Tensor = self.pipeline._upsample_token_ids(token_ids, height // 32, width // 32)
        return patches
