"""``PictureTokenizer``: a picture as tokens of the codebook, by the vision tower of GLM-Image's language model.

The tower sees the picture at half its size, in patches of 16 x 16 pixels. Of each patch's state the quantizer takes the
nearest of the codebook's vectors, whose number is the token. Both run in Transformers' modules, as its
``GlmImageForConditionalGeneration`` runs them on one picture.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from omni_jobs.errors import ConfigError
from workers.models.checkpoint_weights import load_module
from workers.models.glm_image.prompts import LANGUAGE_MODEL, PROCESSOR

if TYPE_CHECKING:
    from PIL import Image


def load_picture_tokenizer(checkpoint: Path, device: torch.device, dtype: torch.dtype) -> PictureTokenizer:
    """Load this part of the language model, and no other. Raise ConfigError naming what is missing or wrong.

    The tower runs in ``dtype``. The quantizer runs in float32, because in bfloat16 many vectors are equally near.
    """
    from transformers import GlmImageConfig, GlmImageImageProcessor
    from transformers.models.glm_image.modeling_glm_image import GlmImageVisionModel, GlmImageVQVAE

    directory = checkpoint / LANGUAGE_MODEL
    try:
        config: Any = GlmImageConfig.from_pretrained(directory, local_files_only=True)
        processor: Any = GlmImageImageProcessor.from_pretrained(checkpoint / PROCESSOR, local_files_only=True)
    except Exception as error:  # Transformers raises many kinds for wrong files
        raise ConfigError(f"pictures cannot be prepared: {error}", file=str(directory)) from error
    tower = load_module(GlmImageVisionModel, config.vision_config, directory, "model.visual.", device, dtype)
    quantizer = load_module(GlmImageVQVAE, config.vq_config, directory, "model.vqmodel.", device, torch.float32)
    return PictureTokenizer(processor, tower, quantizer)


class PictureTokenizer:
    """The vision tower and the quantizer of a checkpoint on one device."""

    def __init__(self, processor: Any, tower: Any, quantizer: Any) -> None:
        self._processor = processor
        self._tower = tower
        self._quantizer = quantizer

    def tokens(self, picture: Image.Image) -> torch.Tensor:
        """Return the image tokens of a picture, int64 [rows, columns], on the device.

        The processor enlarges or shrinks it first, as ``SourceGrids`` says.
        """
        inputs = self._processor(images=[picture], return_tensors="pt")
        grid = inputs["image_grid_thw"].to(self._tower.device)
        pixels = inputs["pixel_values"].to(self._tower.device, self._tower.dtype)
        rows, columns = (int(side) for side in inputs["image_grid_thw"][0, 1:])
        states = self._tower(pixels, grid_thw=grid).last_hidden_state.to(self._quantizer.dtype)
        states = states.view(1, rows, columns, -1).permute(0, 3, 1, 2).contiguous()
        token_ids: torch.Tensor = self._quantizer.encode(states).image_tokens
        return token_ids.view(rows, columns)
