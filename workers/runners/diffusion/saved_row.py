"""``SavedRow``: what a ``ResumableModel`` saved of a row, read back with a check of everything in it."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from omni_jobs.errors import ModelError
from workers.stages.types import TensorTree

_SAMPLED = 64  # values of each weight


class SavedRow:
    """The tensors and values of a saved row; nothing about them is certain."""

    def __init__(self, tensors: Mapping[str, TensorTree], values: Mapping[str, Any]) -> None:
        self._tensors = tensors
        self._values = values

    def check(self, **expected: Any) -> None:
        """Raise ModelError naming the first value that is not the one expected, as JSON has it."""
        for name, value in expected.items():
            if self._values.get(name) != value or isinstance(self._values.get(name), bool) != isinstance(value, bool):
                raise ModelError(f"it was saved with {self._values.get(name)!r}, not {value!r}", field=f"values.{name}")

    def steps_done(self, steps: int) -> int:
        """Return the saved ``steps_done``, of ``steps`` in all. Raises ModelError when it is not in 0 … ``steps``."""
        done = self._values.get("steps_done")
        if not isinstance(done, int) or isinstance(done, bool) or not 0 <= done <= steps:
            raise ModelError(f"{done!r} steps of {steps}", field="values.steps_done")
        return done

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor. Raises ModelError when it is missing, of another shape or dtype, or not finite."""
        return _checked(self._tensors.get(name), f"tensors.{name}", shape, dtype)

    def tensors(self, name: str, count: int, shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
        """Return a list of ``count`` tensors, each checked as ``tensor`` does. Raises ModelError for another list."""
        found, field = self._tensors.get(name), f"tensors.{name}"
        if not isinstance(found, list) or len(found) != count:
            raise ModelError(f"a list of {count} tensors is due", field=field)
        return [_checked(tensor, f"{field}.{number}", shape, dtype) for number, tensor in enumerate(found)]


def _checked(tensor: object, field: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise ModelError("it is missing", field=field)
    if tensor.shape != shape or tensor.dtype != dtype:
        message = f"{dtype} {list(shape)} is due, not {tensor.dtype} {list(tensor.shape)}"
        raise ModelError(message, field=field)
    if not bool(torch.isfinite(tensor).all()):
        raise ModelError("it has values that are not finite", field=field)
    return tensor


def weights_fingerprint(module: torch.nn.Module) -> str:
    """Return a text that differs between modules of other structure or weights, and is the same on each device.

    It samples each weight, so that it takes milliseconds: a trained model and one trained further differ everywhere.
    """
    return fingerprint_of_weights(module.state_dict())


def fingerprint_of_weights(weights: Mapping[str, torch.Tensor]) -> str:
    """Return the same text for the weights of a module, by name."""
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        digest.update(f"{name} {list(weight.shape)} {weight.dtype};".encode())
        sample = weight.detach().flatten()[:_SAMPLED].to("cpu", torch.float32)
        digest.update(sample.contiguous().numpy().tobytes())
    return digest.hexdigest()
