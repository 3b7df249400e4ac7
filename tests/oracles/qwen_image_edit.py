"""Diffusers' ``QwenImageEditPlusPipeline`` and ``QwenImageEditPipeline``, with their own mistake worked around.

``test_qwen_image_edit_reference`` shows it: with Transformers 5 the pipelines do not say which tokens are a picture's,
so that the text encoder gives all tokens the positions of a text. The oracle says so.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from PIL import Image

from tests.oracles.qwen_image import QwenImageReference


class QwenImageEditReference(QwenImageReference):
    """One checkpoint's pipeline, in float32 on the CPU."""

    def __init__(self, checkpoint: Path, *, tell_pictures: bool = True) -> None:
        """``tell_pictures`` False: with the mistake."""
        from diffusers import DiffusionPipeline
        from diffusers.utils import logging

        logging.disable_progress_bar()
        self.pipeline: Any = DiffusionPipeline.from_pretrained(checkpoint, local_files_only=True)
        self.pipeline.set_progress_bar_config(disable=True)
        if tell_pictures:
            self.pipeline.text_encoder.register_forward_pre_hook(_tell_pictures, with_kwargs=True)

    def embeds_of(self, text: str, pictures: Sequence[Image.Image]) -> torch.Tensor:
        """Return the rows of pictures and instruction [T, H]."""
        resize = self.pipeline.image_processor.resize
        seen = []
        for picture in pictures:
            (width, height), area = picture.size, self._area("CONDITION_IMAGE_SIZE")
            width, height = self._module.calculate_dimensions(area, width / height)[:2]
            seen.append(resize(picture, height, width))
        with torch.no_grad():
            image = seen if self._is_plus else seen[0]
            embeds, mask = self.pipeline.encode_prompt(text, image)
        assert mask is None
        rows: torch.Tensor = embeds[0]
        return rows

    def edit(
        self,
        text: torch.Tensor,
        negative: torch.Tensor | None,
        pictures: Sequence[Image.Image],
        *,
        pixels: int,
        steps: int,
        scale: float,
        seed: int,
        height: int | None = None,
        width: int | None = None,
    ) -> torch.Tensor:
        """Return the latents [N, 64] of embeddings [T, H] and [U, H], from pictures scaled to ``pixels`` and noise."""
        sized = self._module.calculate_dimensions
        with mock.patch.object(self._module, "calculate_dimensions", lambda _, ratio: sized(pixels, ratio)):
            output = self.pipeline(
                image=list(pictures) if self._is_plus else pictures[0],
                prompt_embeds=text[None],
                negative_prompt_embeds=None if negative is None else negative[None],
                true_cfg_scale=scale,
                height=height,
                width=width,
                num_inference_steps=steps,
                generator=torch.Generator().manual_seed(seed),
                output_type="latent",
            )
        latents: torch.Tensor = output.images[0]
        return latents

    @property
    def _is_plus(self) -> bool:
        return type(self.pipeline).__name__ == "QwenImageEditPlusPipeline"

    @property
    def _module(self) -> Any:
        import sys

        return sys.modules[type(self.pipeline).__module__]

    def _area(self, name: str) -> int:
        return int(getattr(self._module, name, 1024 * 1024))


def _tell_pictures(module: Any, args: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    is_picture = given["input_ids"] == module.config.image_token_id
    return args, {**given, "mm_token_type_ids": is_picture.int()}
