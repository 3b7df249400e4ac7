"""The components of checkpoints that AR stages run, and the arguments with which vLLM loads each.

An architecture is an entry point of the group ``omni_jobs.models``; this module holds those of this package.
docs/models.md tells how to add one. Every process of vLLM imports this module and the modules that the
entry points name, so they import nothing heavy.
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

GROUP = "omni_jobs.models"


@dataclass(frozen=True, slots=True)
class ModelClass:
    """Names a model class of ours: the name under which it is registered with vLLM, and its path."""

    architecture: str
    module: str  # "module:Class"


@dataclass(frozen=True, slots=True)
class Component:
    """One component of a checkpoint, as an AR stage runs it.

    text             its tokens are text, so the stage has a tokenizer and streams text
    media            its prompts may hold audio, images or video
    model_class      the model class of ours that ``engine_args`` select; None: vLLM's own
    engine_args      vLLM's AsyncEngineArgs beyond those of the stage config
    stop_ids         returns the ids that end generation from the model's config, beside those of the tokenizer
                     and generation_config
    adds_embeddings  a captured row is last hidden state + input embedding, the latter zero at media positions of
                     the prompt; otherwise it is the last hidden state alone
    """

    text: bool = True
    media: bool = False
    model_class: ModelClass | None = None
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    stop_ids: Callable[[PretrainedConfig], list[int]] = lambda config: []
    adds_embeddings: bool = False


@dataclass(frozen=True, slots=True)
class Architecture:
    """The components of one architecture's checkpoints by name; the name None is the whole checkpoint."""

    components: Mapping[str | None, Component]


QWEN_TALKER = ModelClass(
    "OmniJobsQwen2_5OmniTalker", "workers.models.qwen2_5_omni.talker:Qwen2_5OmniTalkerForConditionalGeneration"
)


def qwen_talker_config(config: PretrainedConfig) -> PretrainedConfig:
    """Edit and return the talker's part of a Qwen2.5-Omni config; it is the talker's ``hf_overrides`` of vLLM.

    A config without a talker, such as vLLM's dummy, is returned as it is.
    """
    talker: PretrainedConfig | None = getattr(config, "talker_config", None)
    if talker is None:
        return config
    talker.architectures = [QWEN_TALKER.architecture]
    talker.tie_word_embeddings = False
    talker.qkv_bias = True
    return talker


def qwen_codec_stop_ids(config: PretrainedConfig) -> list[int]:
    """Return the ids of codec pad and end, at which Transformers' own ``generate`` ends the talker's codes."""
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
    """Return the component of a stage's model. Raise ConfigError when no AR stage can run it."""
    installed = tuple(entry_points(group=GROUP, name=model.architecture))
    components: Mapping[str | None, Component] = installed[0].load().components if installed else {}
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
    """Return the model classes that components of installed architectures name, not vLLM's own; for ``register``."""
    components = [part for entry in entry_points(group=GROUP) for part in entry.load().components.values()]
    return [part.model_class for part in components if part.model_class is not None]
