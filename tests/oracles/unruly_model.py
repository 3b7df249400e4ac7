"""``UnrulyLlama``: the tinted Llama, whose methods raise what a file names. For vLLM's processes alone."""

import builtins
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tinted.model import TintedLlamaForCausalLM

from tests.oracles.unruly import RAISES
from workers.stages.types import TensorTree

__all__ = ["UnrulyLlama"]


class UnrulyLlama(TintedLlamaForCausalLM):
    """Implements SupportsAdditionalInformation and SupportsNamedOutputs."""

    def load_information(self, information: Mapping[str, Any], prompt_tokens: int) -> Any:
        _raise_at("load_information")
        return super().load_information(information, prompt_tokens)

    def named_outputs(self, rows: torch.Tensor, prompt_tokens: int) -> dict[str, TensorTree]:
        _raise_at("named_outputs")
        outputs: dict[str, TensorTree] = super().named_outputs(rows, prompt_tokens)
        return outputs

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        _raise_at("forward")
        return super().forward(*args, **kwargs)


def _raise_at(place: str) -> None:
    file = Path(os.environ[RAISES]) / place
    if file.exists():
        raise getattr(builtins, file.read_text(encoding="utf-8"))("out of the model's code")
