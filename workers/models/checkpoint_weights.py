"""Parts of a checkpoint, without the weights of the others.

load_module(…)   a part as a module of Transformers
read_rows(…)     some rows of one table
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from omni_jobs.errors import ConfigError
from omni_jobs.prompts.checkpoint_files import read_json

if TYPE_CHECKING:
    import torch


def load_module(kind: Any, config: Any, directory: Path, prefix: str, device: torch.device, dtype: torch.dtype) -> Any:
    """Return a module of a class of Transformers and its config, fit to be run.

    ``prefix``: what the names of its weights in the checkpoint begin with.
    Raise ConfigError naming the file or the part of the checkpoint that is missing or wrong.
    """
    from transformers.initialization import no_init_weights

    with no_init_weights():  # saves 12 s for Qwen2.5-Omni's token2wav
        module = kind._from_config(config, dtype=dtype)
    try:
        module.load_state_dict(_read_weights(directory, prefix, device, dtype), assign=True)
    except RuntimeError as error:
        raise ConfigError(f"the weights {prefix}… do not fit: {error}", file=str(directory)) from error
    return module.eval().requires_grad_(False).to(device)


def _read_weights(directory: Path, prefix: str, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the weights whose names begin with ``prefix``, by the rest of their names, on a device.

    Host memory never holds them all on their way to another device.
    """
    weights: dict[str, torch.Tensor] = {}
    for name in weight_files(directory, prefix):
        try:
            with safe_open(directory / name, framework="pt", device=str(device)) as file:
                for key in file.keys():  # noqa: SIM118 - not a mapping
                    if key.startswith(prefix):
                        weights[key.removeprefix(prefix)] = file.get_tensor(key).to(dtype)
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{name} cannot be read: {error}", file=str(directory / name)) from error
    return weights


def weight_files(directory: Path, prefix: str) -> list[str]:
    """Return the files that hold such weights, from the index of a sharded checkpoint. Raise ConfigError."""
    index = directory / "model.safetensors.index.json"
    file_of = read_json(index, {"weight_map": {prefix: "model.safetensors"}}).get("weight_map")
    if not isinstance(file_of, dict):
        raise ConfigError("the weight index cannot be read", file=str(index), field="weight_map")
    return sorted({file for key, file in file_of.items() if key.startswith(prefix)})


def read_rows(directory: Path, name: str, rows: Sequence[int]) -> torch.Tensor:
    """Return these rows [n, H] of a checkpoint's table, and read no other weights. Raise ConfigError."""
    import torch

    files = weight_files(directory, name) or ["model.safetensors"]
    try:
        with safe_open(directory / files[0], framework="pt") as weights:
            table = weights.get_slice(name)
            size = table.get_shape()[0]
            if outside := [row for row in rows if not 0 <= row < size]:
                raise ConfigError(f"token {outside[0]} is outside {name}", file=str(directory / files[0]))
            return torch.cat([table[row : row + 1] for row in rows])
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"there is no {name}: {error}", file=str(directory / files[0])) from error
