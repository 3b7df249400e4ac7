"""Protocols that a vLLM model class implements to read additional information or to give more than hidden states.

An engine prompt's ``additional_information`` (OmniTokensPrompt) reaches the model in the engine's process before
the request enters the batch. ``load_information`` checks and prepares it once, and the other methods get its
result. The runner does not look into it. Examples: workers.models.qwen2_5_omni.talker, and examples/tinted,
which docs/models.md explains.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from omni_jobs.errors import ConfigError
from workers.runners.ar.row_layout import RowKind
from workers.stages.types import TensorTree

INFORMATION = "omni_information"  # key in SamplingParams.extra_args; its value is the key of the loaded information


@dataclass(frozen=True, slots=True)
class InformedRows:
    """One request's loaded information, and its rows ``begin`` … ``end`` in a step, the first at its ``position``."""

    information: Any  # the result of load_information
    begin: int
    end: int
    position: int


@runtime_checkable
class SupportsAdditionalInformation(Protocol):
    """A vLLM model class whose inputs depend on more than its token ids."""

    def load_information(self, information: Mapping[str, Any], prompt_tokens: int) -> Any:
        """Check one request's information, whose tensors are on the CPU; return it in a form of the model's choice.

        Raise ModelError naming a wrong field: it fails that request alone. Any other exception may fail more.
        """

    def information_positions(self, loaded: Any) -> tuple[torch.Tensor, int] | None:
        """Return a request's M-RoPE positions int64 [3, P + n] on the CPU and delta; None: those the model computes.

        They are the positions of the prompt's P tokens and of the first n that are generated, n ≥ 0. Later ones have
        their index plus delta in all three rows. ``loaded`` is what ``load_information`` returned for the request.
        """

    def embed_information(self, embeds: torch.Tensor, step: Sequence[InformedRows]) -> None:
        """Edit a step's input embeddings [n, H] in place; ``step`` has the rows of each request with information."""


@runtime_checkable
class SupportsFeedback(SupportsAdditionalInformation, Protocol):
    """A vLLM model class whose input at a position depends on what its forward pass gave for the one before.

    ``embed_information`` edits the next input. So no token may be guessed: an engine that guesses is refused.
    """

    def note_outputs(self, output: Any, step: Sequence[InformedRows]) -> None:
        """Keep what the next inputs need of the forward pass's ``output``; called after each step, with its rows."""


@runtime_checkable
class SupportsStepOutputs(Protocol):
    """A vLLM model class that gives the next stage more of each position than its last hidden states.

    Its forward pass returns a tuple of two, of which the first are the last hidden states [n, H]: what it returns in a
    step is what vLLM's graphs replay, so it holds tensors alone.
    """

    def step_outputs(self) -> Sequence[RowKind]:
        """Return the kinds of rows that ``extract_multimodal_outputs`` gives in each step. Called once, when loaded."""

    def extract_multimodal_outputs(
        self, hidden_states: tuple[torch.Tensor, Any]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Split what the forward pass returned into the last hidden states [n, H], and each kind's rows by name.

        Each kind's are [n, *shape] of its dtype, on the model's device. Nothing is copied here.
        """


@runtime_checkable
class SupportsNamedOutputs(Protocol):
    """A vLLM model class that gives the next stage tensors besides tokens and hidden states."""

    def named_outputs(self, rows: torch.Tensor, prompt_tokens: int) -> Mapping[str, TensorTree]:
        """Return tensors, lists and dicts of tensors, by name. Called once, when a captured request is done.

        ``rows`` [P + N - 1, H] are on the CPU and must not be changed. One rank calls this between two steps, so it
        must be quick and use no layer that is split over ranks. Raise ModelError to fail that request alone.
        """


def check_model_class(model: type[Any], *, layers: bool, is_pipelined: bool, guesses: bool) -> None:
    """Raise ConfigError naming the engine setting with which instances of a model class do not run.

    ``layers``: other layers are captured. ``is_pipelined``: the model's layers are divided among ranks. ``guesses``:
    tokens are guessed.
    """
    gives = issubclass(model, SupportsStepOutputs)
    if gives and layers:
        said = f"{model.__name__} names its own outputs of a step, and gives no other layers"
        raise ConfigError(said, field="engine.hidden_layers")
    if gives and is_pipelined:
        said = f"{model.__name__} gives outputs of a step, and runs in no pipeline of ranks"
        raise ConfigError(said, field="engine.pipeline_parallel_size")
    if guesses and issubclass(model, SupportsFeedback):
        said = f"an input of {model.__name__} needs the hidden states before it, so its tokens are not guessed"
        raise ConfigError(said, field="engine.speculative_config")
