"""How vLLM runs the talker of a checkpoint that has a thinker, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from transformers import PretrainedConfig

TALKER_ARGS: Final[Mapping[str, Any]] = {
    "skip_tokenizer_init": True,
    "enable_prompt_embeds": True,
    "generation_config": "vllm",  # the checkpoint's is the thinker's
}
"""vLLM's arguments for a talker, beside ``hf_overrides``, which takes the talker's part of the config."""


def talker_part(config: PretrainedConfig, **changes: Any) -> PretrainedConfig:
    """Return the talker's part of a checkpoint's config with these values set in it.

    A config without a talker, such as vLLM's dummy, is returned as it is.
    """
    talker: PretrainedConfig | None = getattr(config, "talker_config", None)
    if talker is None:
        return config
    for name, value in changes.items():
        setattr(talker, name, value)
    return talker
