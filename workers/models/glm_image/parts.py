"""Load the parts of a GLM-Image checkpoint, which has a folder for each, in the layout of Diffusers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from omni_jobs.errors import ConfigError
from workers.models.glm_image.glyph_encoder import GlyphEncoder
from workers.runners.diffusion.saved_row import weights_fingerprint

if TYPE_CHECKING:
    from workers.models.glm_image.transformer import Transformer


def load_transformer(checkpoint: Path, device: torch.device, dtype: torch.dtype) -> Transformer:
    """Return the transformer of a checkpoint. Raise ConfigError naming the part that is missing or wrong."""
    from diffusers import GlmImageTransformer2DModel

    from workers.models.glm_image.transformer import Transformer

    return Transformer(_load(GlmImageTransformer2DModel, checkpoint / "transformer", device, dtype))


def load_glyph_encoder(checkpoint: Path, device: torch.device, dtype: torch.dtype) -> GlyphEncoder:
    """Return the glyph encoder of a checkpoint. Raise ConfigError naming the part that is missing or wrong."""
    from transformers import ByT5Tokenizer, T5EncoderModel

    directory = checkpoint / "tokenizer"
    try:
        tokenizer = ByT5Tokenizer.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"no tokenizer of bytes: {error}", file=str(directory)) from error
    return GlyphEncoder(tokenizer, _load(T5EncoderModel, checkpoint / "text_encoder", device, dtype))


def load_vae(checkpoint: Path, device: torch.device, dtype: torch.dtype) -> Any:
    """Return the VAE of a checkpoint. Raise ConfigError naming the part that is missing or wrong."""
    from diffusers import AutoencoderKL

    return _load(AutoencoderKL, checkpoint / "vae", device, dtype)


def _load(model_class: Any, directory: Path, device: torch.device, dtype: torch.dtype) -> Any:
    try:
        model, info = model_class.from_pretrained(
            directory, torch_dtype=dtype, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
    except Exception as error:  # Diffusers, Transformers and safetensors raise many kinds for wrong files
        raise ConfigError(f"{model_class.__name__} cannot be loaded: {error}", file=str(directory)) from error
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info.get(problem):
            message = f"{model_class.__name__} has {problem.replace('_', ' ')}: {sorted(info[problem])[:3]}"
            raise ConfigError(message, file=str(directory))
    return model.eval().requires_grad_(False).to(device)
