"""What holds of every family's snapshots of rows that have a LoRA adapter."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch

from omni_jobs.errors import ModelError
from workers.runners.diffusion.prompt import DiffusionPrompt


def check_resumed_alone_by(model: Any, given: DiffusionPrompt[Any], others: Iterable[DiffusionPrompt[Any]]) -> None:
    """A snapshot of a prompt's row goes on to the bit, and for prompts of other adapters, or of none, it is refused."""
    with torch.inference_mode():
        row = model.begin(given)
        model.step([row])
        saved = model.save(row)
        resumed = model.resume(given, saved.tensors, saved.values)
        model.step([row])
        model.step([resumed])
    assert torch.equal(row.latents, resumed.latents)
    for other in others:
        with pytest.raises(ModelError) as refused:
            model.resume(other, saved.tensors, saved.values)
        assert refused.value.field == "values.lora"
