"""The parts of checkpoints that AR stages run, and how vLLM loads each.

An architecture is an entry point of the group ``omni_jobs.models``; those of this
package stand below. A new model adds its own, its input processor and at most a model
class: docs/models.md. Light: this module, and what the entry points name, are imported
in every process of vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from workers.stages.engine_args import OmniModelConfig

__all__ = [
    "CAUSAL_LM",
    "GROUP",
    "QWEN2_5_OMNI",
    "Architecture",
    "Component",
    "ModelClass",
    "component_of",
    "model_classes",
]

GROUP = "omni_jobs.models"


@dataclass(frozen=True, slots=True)
class ModelClass:
    """A model class of ours, as vLLM's registry knows it."""

    architecture: str
    module: str  # "module:Class"


@dataclass(frozen=True, slots=True)
class Component:
    """One part of a checkpoint as an AR stage.

    text             whether its tokens are text: it then has a tokenizer and streams text
    media            whether its prompts hold audio, images or video
    model_class      the model class of ours that ``engine_args`` select, if one is needed
    engine_args      vLLM's AsyncEngineArgs beyond the stage's own
    stop_ids         the ids that end generation, from the model's config, beside those of the tokenizer and
                     generation_config
    adds_embeddings  whether a captured row is last hidden state + input embedding, the latter zero at media
                     positions of the prompt; else it is the last hidden state
    """

    text: bool = True
    media: bool = False
    model_class: ModelClass | None = None
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    stop_ids: Callable[[PretrainedConfig], list[int]] = lambda config: []
    adds_embeddings: bool = False


@dataclass(frozen=True, slots=True)
class Architecture:
    """The parts of one architecture's checkpoints that AR stages run; None: the whole checkpoint."""

    components: Mapping[str | None, Component]


QWEN_TALKER = ModelClass(
    "OmniJobsQwen2_5OmniTalker", "workers.models.qwen2_5_omni.talker:Qwen2_5OmniTalkerForConditionalGeneration"
)


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


QWEN2_5_OMNI = Architecture(
    {
        "thinker": Component(media=True, adds_embeddings=True),
        "talker": Component(
            text=False,
            model_class=QWEN_TALKER,
            engine_args={
                "hf_overrides": qwen_talker_config,
                "skip_tokenizer_init": True,
                "enable_prompt_embeds": True,
                "generation_config": "vllm",  # the checkpoint's is the thinker's
            },
            stop_ids=qwen_codec_stop_ids,
        ),
    }
)


CAUSAL_LM = Architecture({None: Component()})


def component_of(model: OmniModelConfig, stage: str) -> Component:
    """Raises ConfigError when no AR stage can run this part."""
    found = tuple(entry_points(group=GROUP, name=model.architecture))
    components: Mapping[str | None, Component] = found[0].load().components if found else {}
    try:
        return components[model.component]
    except KeyError:
        known = ", ".join(sorted(str(name) for name in components)) or "nothing"
        raise ConfigError(
            f"no AR runner for {model.architecture}'s component {model.component!r}; it has {known}",
            field="component",
            stage=stage,
        ) from None


def model_classes() -> list[ModelClass]:
    """The model classes of every installed architecture."""
    components = [part for entry in entry_points(group=GROUP) for part in entry.load().components.values()]
    return [part.model_class for part in components if part.model_class is not None]
