"""Qwen-Image's text encoders, each a Qwen2.5-VL, as pooling stages run them: one reads text, one pictures, too."""

from workers.models.qwen_image.family import TEXT_ENCODER
from workers.models.qwen_image.parameters import MOST_SOURCES
from workers.runners.pooling.component import PoolingComponent

ENCODER = PoolingComponent(model="text_encoder", tokenizer="tokenizer")

EDIT_ENCODER = PoolingComponent(
    model="text_encoder",
    tokenizer="tokenizer",
    pictures=MOST_SOURCES,
    engine_args={
        "hf_overrides": {"architectures": [TEXT_ENCODER]},
        # vLLM finds no settings of the processor beside the weights, and would give the vision tower bytes as they are.
        "mm_device_do_normalize": False,
    },
)
