"""``UnrulyLlama``: the tinted Llama whose methods misbehave where ``tests.unruly.family`` asks them to."""

import builtins
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tinted.model import TintedLlamaForCausalLM
from vllm.forward_context import get_forward_context

from tests.unruly.family import CONTEXT, CULPRIT, DIRECTORY, HANG, LONG_S
from workers.stages.types import TensorTree

__all__ = ["UnrulyLlama"]


class UnrulyLlama(TintedLlamaForCausalLM):
    """Implements SupportsAdditionalInformation and SupportsNamedOutputs."""

    def load_information(self, information: Mapping[str, Any], prompt_tokens: int) -> Any:
        if prompt_tokens == CULPRIT:
            _misbehave("load_information")
        return super().load_information(information, prompt_tokens)

    def named_outputs(self, rows: torch.Tensor, prompt_tokens: int) -> dict[str, TensorTree]:
        if prompt_tokens == CULPRIT:
            _misbehave("named_outputs")
        return {"mean": rows.mean(dim=0)}

    def forward(self, input_ids: Any, positions: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        _misbehave("forward")
        if positions.shape[-1] >= CONTEXT and get_forward_context().attn_metadata is not None:  # None: vLLM warms up
            time.sleep(LONG_S)
        return super().forward(input_ids, positions, *args, **kwargs)


def _misbehave(method: str) -> None:
    file = Path(os.environ[DIRECTORY]) / method
    try:
        how = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    if how != HANG:
        raise getattr(builtins, how)
    while file.exists():
        time.sleep(0.01)
