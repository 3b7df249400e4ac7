"""``ArComponent``: how an AR stage runs a component of a checkpoint on vLLM.

A family names one as text, in the declaration of its component. An ``ArComponent`` imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from workers.runners.ar.prompts import OmniTextPrompt, OmniTokensPrompt
    from workers.stages.types import OmniModelRunnerOutput


@dataclass(frozen=True, slots=True)
class ArComponent:
    """One component of a checkpoint, as an AR stage runs it.

    text             its tokens are text, so the stage has a tokenizer and streams text
    engine_args      vLLM's AsyncEngineArgs beyond those of the stage config; ``hf_overrides`` may select one of the
                     family's ``vllm_models``
    stop_ids         returns the ids that end generation from the model's config, beside those of the tokenizer
                     and generation_config
    adds_embeddings  a captured row is last hidden state + input embedding, the latter zero at media positions of
                     the prompt; otherwise it is the last hidden state alone
    hidden_layers    name → layer whose inputs are captured beside the last hidden states; 0: the embeddings. Or a
                     function that returns them for a checkpoint directory, and may raise ConfigError
    model            where in the checkpoint directory the component's config.json and weights lie
    finish           makes the stage's output of a prompt and what the engine gave for it; may raise ModelError
    """

    text: bool = True
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    stop_ids: Callable[[PretrainedConfig], list[int]] = lambda config: []
    adds_embeddings: bool = False
    hidden_layers: Mapping[str, int] | Callable[[Path], Mapping[str, int]] = field(default_factory=dict)
    model: str = "."
    finish: Callable[[OmniTextPrompt | OmniTokensPrompt, OmniModelRunnerOutput], OmniModelRunnerOutput] = (
        lambda prompt, output: output
    )
