"""``PoolingComponent``: what a family says of one component of its checkpoint that a pooling stage runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class PoolingComponent:
    """One component of a family's checkpoint, as a pooling stage runs it.

    engine_args  vLLM's AsyncEngineArgs beyond those of the stage config; ``hf_overrides`` may select one of the
                 family's ``vllm_models``
    model        where in the checkpoint directory the component's config.json and weights lie: ``text_encoder``
    tokenizer    where in the checkpoint directory its tokenizer lies; vLLM needs one, although prompts are token ids
    pictures     the most pictures of a prompt; 0: its prompts hold none, and the encoders of media are not loaded
    """

    engine_args: Mapping[str, Any] = field(default_factory=dict)
    model: str = "."
    tokenizer: str = "."
    pictures: int = 0
