"""Where an environment that is not set up anew since finds the family ``qwen_image_edit``."""

from workers.models.qwen_image.family import QWEN_IMAGE_EDIT, SOURCE_TOKENS

__all__ = ["QWEN_IMAGE_EDIT", "SOURCE_TOKENS"]
