"""The parts of checkpoints that AR stages run, and how vLLM loads each.

A visible table: a new model adds its row, its class and its input processor. Light:
this module is imported in every process of vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from workers.engine_args import OmniModelConfig

__all__ = ["MODELS", "Component", "ModelClass", "component_of"]


@dataclass(frozen=True, slots=True)
class ModelClass:
    """A model class of ours, as vLLM's registry knows it."""

    architecture: str
    module: str  # "module:Class"


@dataclass(frozen=True, slots=True)
class Component:
    """One part of a checkpoint as an AR stage.

    text         whether its tokens are text: it then has a tokenizer and streams text
    media        whether its prompts hold audio, images or video
    engine_args  vLLM's AsyncEngineArgs beyond the stage's own
    stop_ids     the ids that end generation, from the model's config, beside the tokenizer's and generation_config's
    """

    text: bool = True
    media: bool = False
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    stop_ids: Callable[[PretrainedConfig], list[int]] = lambda config: []


QWEN_TALKER = ModelClass(
    "OmniJobsQwen2_5OmniTalker", "workers.models.qwen2_5_omni_talker:Qwen2_5OmniTalkerForConditionalGeneration"
)

MODELS: tuple[ModelClass, ...] = (QWEN_TALKER,)


def qwen_talker_config(config: PretrainedConfig) -> PretrainedConfig:
    """The talker's part of a Qwen2.5-Omni config. vLLM first calls this with a dummy config: returned as it is."""
    talker: PretrainedConfig | None = getattr(config, "talker_config", None)
    if talker is None:
        return config
    talker.architectures = [QWEN_TALKER.architecture]
    talker.tie_word_embeddings = False
    talker.qkv_bias = True
    return talker


def qwen_codec_stop_ids(config: PretrainedConfig) -> list[int]:
    """As Transformers' ``Qwen2_5OmniForConditionalGeneration.generate``: codec pad and codec end."""
    return [config.tts_codec_pad_token_id, config.tts_codec_end_token_id]


_COMPONENTS: Mapping[tuple[str, str | None], Component] = {
    ("qwen2_5_omni", "thinker"): Component(media=True),
    ("qwen2_5_omni", "talker"): Component(
        text=False,
        engine_args={
            "hf_overrides": qwen_talker_config,
            "skip_tokenizer_init": True,
            "enable_prompt_embeds": True,
            "generation_config": "vllm",  # the checkpoint's is the thinker's
        },
        stop_ids=qwen_codec_stop_ids,
    ),
}


def component_of(model: OmniModelConfig, stage: str) -> Component:
    """Raises ConfigError when no AR stage can run this part."""
    try:
        return _COMPONENTS[model.architecture, model.component]
    except KeyError:
        known = ", ".join(sorted(str(name) for kind, name in _COMPONENTS if kind == model.architecture)) or "nothing"
        raise ConfigError(
            f"no AR runner for {model.architecture}'s component {model.component!r}; it has {known}",
            field="component",
            stage=stage,
        ) from None
