"""What a model class implements to read additional information, and to hand more on than rows.

The ``additional_information`` of an OmniTokensPrompt reaches the model in the
engine's process before the request enters the batch; ``load_information`` checks and
prepares it once, the other methods use what it made. The runner knows nothing of its
contents: workers.models.qwen2_5_omni.talker is one example, tests/example_model another,
explained in docs/models.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from workers.stages.types import TensorTree

__all__ = ["INFORMATION", "InformedRows", "SupportsAdditionalInformation", "SupportsNamedOutputs"]

INFORMATION = "omni_information"  # SamplingParams.extra_args: the key of the request's loaded information


@dataclass(frozen=True, slots=True)
class InformedRows:
    """A request's rows in one step: rows ``begin`` … ``end`` of the step are its positions from ``position`` on."""

    information: Any  # what load_information made
    begin: int
    end: int
    position: int


@runtime_checkable
class SupportsAdditionalInformation(Protocol):
    """A vLLM model class whose inputs depend on more than its token ids."""

    def load_information(self, information: Mapping[str, Any], prompt_tokens: int) -> Any:
        """Check and prepare one request's information, its tensors on the CPU.

        Raises ModelError naming the field that does not fit: that request fails, nothing else.
        """

    def information_positions(self, loaded: Any) -> tuple[torch.Tensor, int] | None:
        """M-RoPE positions int64 [3, P] on the CPU and delta; None: the model's own."""

    def embed_information(self, embeds: torch.Tensor, step: Sequence[InformedRows]) -> None:
        """Edit the step's input embeddings [n, H] in place, for all its requests at once."""


@runtime_checkable
class SupportsNamedOutputs(Protocol):
    """A vLLM model class that gives the next stage more than tokens and rows."""

    def named_outputs(self, rows: torch.Tensor, prompt_tokens: int) -> Mapping[str, TensorTree]:
        """Tensors, lists and dicts of tensors, by name; asked once, when a captured request is done.

        ``rows`` [P + N - 1, H] on the CPU, to be left as they are. One rank is asked, between
        two steps: short work, and no layer that is split over ranks. Raises ModelError: that
        request fails, nothing else.
        """
