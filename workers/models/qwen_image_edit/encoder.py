"""``ENCODER``: Qwen-Image-Edit's text encoder, a Qwen2.5-VL that sees pictures, as a pooling stage runs it."""

from workers.models.qwen_image.parameters import MOST_SOURCES
from workers.models.qwen_image_edit.family import TEXT_ENCODER
from workers.runners.pooling.component import PoolingComponent

ENCODER = PoolingComponent(
    model="text_encoder",
    tokenizer="tokenizer",
    pictures=MOST_SOURCES,
    engine_args={
        "hf_overrides": {"architectures": [TEXT_ENCODER]},
        # vLLM finds no settings of the processor beside the weights, and would give the vision tower bytes as they are.
        "mm_device_do_normalize": False,
    },
)
