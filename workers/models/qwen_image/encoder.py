"""``ENCODER``: Qwen-Image's text encoder, a Qwen2.5-VL that reads text alone, as a pooling stage runs it."""

from workers.runners.pooling.component import PoolingComponent

ENCODER = PoolingComponent(model="text_encoder", tokenizer="tokenizer")
