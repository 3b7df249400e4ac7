"""The oracle of GLM-Image: the pipeline of Diffusers, and its language model of Transformers, on a checkpoint."""

from pathlib import Path
from typing import Any

import torch
from diffusers import GlmImagePipeline


class GlmImageReference:
    """Diffusers' pipeline in float32 on the CPU, with its own mistakes put right."""

    def __init__(self, checkpoint: Path) -> None:
        self.pipeline = GlmImagePipeline.from_pretrained(checkpoint)
        self.pipeline.set_progress_bar_config(disable=True)

    # The language model

    def prompt(self, text: str, height: int, width: int) -> Any:
        """The language model's inputs, with ``input_ids`` and the target and preview grids."""
        return self.pipeline.processor.apply_chat_template(
            [[{"role": "user", "content": [{"type": "text", "text": text}]}]],
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            processor_kwargs={"target_h": height, "target_w": width},
        )

    def tokens(self, text: str, height: int, width: int, **options: Any) -> list[int]:
        """All image tokens of a picture, the preview's first, as the language model writes them greedily."""
        inputs = self.prompt(text, height, width)
        language_model = self.pipeline.vision_language_encoder
        language_model.model.rope_deltas = None  # of another prompt
        count = int(inputs["image_grid_thw"].prod(dim=-1).sum())
        # A trained model ends a picture where it ends; a random one must be kept from ending it before.
        only_image_tokens = list(range(16_384, language_model.config.text_config.vision_vocab_size))
        options = {"suppress_tokens": only_image_tokens, "max_new_tokens": count, "do_sample": False, **options}
        output = language_model.generate(**inputs, **options)
        return [int(token) for token in output[0, inputs["input_ids"].shape[1] :]]
