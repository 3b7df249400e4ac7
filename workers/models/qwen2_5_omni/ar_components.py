"""How vLLM runs Qwen2.5-Omni's thinker and talker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.models.qwen2_5_omni.family import TALKER_MODEL
from workers.runners.ar.component import ArComponent

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def talker_config(config: PretrainedConfig) -> PretrainedConfig:
    """Edit and return the talker's part of a Qwen2.5-Omni config; it is the talker's ``hf_overrides`` of vLLM.

    A config without a talker, such as vLLM's dummy, is returned as it is.
    """
    talker: PretrainedConfig | None = getattr(config, "talker_config", None)
    if talker is None:
        return config
    talker.architectures = [TALKER_MODEL]
    talker.tie_word_embeddings = False
    talker.qkv_bias = True
    return talker


def codec_stop_ids(config: PretrainedConfig) -> list[int]:
    """Return the ids of codec pad and end, at which Transformers' own ``generate`` ends the talker's codes."""
    return [config.tts_codec_pad_token_id, config.tts_codec_end_token_id]


THINKER = ArComponent(adds_embeddings=True)

TALKER = ArComponent(
    text=False,
    engine_args={
        "hf_overrides": talker_config,
        "skip_tokenizer_init": True,
        "enable_prompt_embeds": True,
        "generation_config": "vllm",  # the checkpoint's is the thinker's
    },
    stop_ids=codec_stop_ids,
)
