"""How vLLM runs Qwen2.5-Omni's thinker and talker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.models.qwen2_5_omni.family import TALKER_MODEL
from workers.models.talkers.component import TALKER_ARGS, talker_part
from workers.runners.ar.component import ArComponent

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def talker_config(config: PretrainedConfig) -> PretrainedConfig:
    """Edit and return the talker's part of a Qwen2.5-Omni config; it is the talker's ``hf_overrides`` of vLLM."""
    return talker_part(config, architectures=[TALKER_MODEL], tie_word_embeddings=False, qkv_bias=True)


def codec_stop_ids(config: PretrainedConfig) -> list[int]:
    """Return the ids of codec pad and end, at which Transformers' own ``generate`` ends the talker's codes."""
    return [config.tts_codec_pad_token_id, config.tts_codec_end_token_id]


THINKER = ArComponent(adds_embeddings=True)

TALKER = ArComponent(
    text=False,
    engine_args={"hf_overrides": talker_config, **TALKER_ARGS},
    stop_ids=codec_stop_ids,
)
