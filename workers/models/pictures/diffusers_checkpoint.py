"""Load parts of a checkpoint in the layout of Diffusers, of which each stage needs its own: a folder for each part."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from omni_jobs.errors import ConfigError
from omni_jobs.prompts.checkpoint_files import read_json

_SAMPLE_BYTES = 65_536


def load_part(checkpoint: Path, part: str, class_name: str, device: torch.device, dtype: torch.dtype) -> Any:
    """Return the model in a checkpoint's folder ``part``, of Diffusers' class ``class_name``, fit to be run.

    Raises ConfigError naming the part's file where it is missing, of another class, or not all of its weights are there
    and fit, and where Diffusers is not installed.
    """
    try:
        import diffusers
        from diffusers.utils import logging
    except ImportError as error:
        raise ConfigError(f"pictures need Diffusers: pip install 'omni-jobs[pictures]' ({error})") from error
    logging.disable_progress_bar()
    file = str(checkpoint / part / "config.json")
    found = read_json(checkpoint / part / "config.json").get("_class_name")
    if found != class_name:
        raise ConfigError(f"the {part} is a {found}, not a {class_name}", file=file, field="_class_name")
    problems = ("missing_keys", "unexpected_keys", "mismatched_keys")
    return pretrained(getattr(diffusers, class_name), checkpoint / part, device, problems, torch_dtype=dtype)


def pretrained(kind: Any, directory: Path, device: torch.device, problems: Sequence[str], **options: Any) -> Any:
    """Return a model of Diffusers or Transformers in a folder of a checkpoint, fit to be run.

    ``problems``: those of the loading for which it is refused. Raises ConfigError naming the folder's config.
    """
    file, part = str(directory / "config.json"), directory.name
    try:
        model, info = kind.from_pretrained(
            directory,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            device_map={"": str(device)},  # each weight goes to the device at once, so that host memory never holds all
            **options,
        )
    except NotImplementedError as error:  # torch's, of a weight that no file has, when it goes to the device
        raise ConfigError(f"the {part} has missing keys, which the log names", file=file) from error
    except Exception as error:  # Diffusers, Transformers, Accelerate and safetensors raise many kinds for wrong files
        raise ConfigError(f"the {part} cannot be loaded: {error}", file=file) from error
    for problem in problems:
        if info[problem]:
            raise ConfigError(f"the {part} has {problem.replace('_', ' ')}: {sorted(info[problem])[:3]}", file=file)
    return model.eval().requires_grad_(False)


def torch_dtype(name: str | None, automatic: torch.dtype) -> torch.dtype:
    """Return the dtype that the engine settings name; None and auto: ``automatic``."""
    dtype: torch.dtype = automatic if name in (None, "auto") else getattr(torch, str(name))
    return dtype


def denoising_dtype(name: str | None, device: torch.device) -> torch.dtype:
    """Return the dtype that the engine settings name; None and auto: bfloat16 on a GPU, float32 on a CPU."""
    return torch_dtype(name, torch.bfloat16 if device.type == "cuda" else torch.float32)


def fingerprint(checkpoint: Path, parts: tuple[str, ...]) -> str:
    """Return 16 hex digits that tell the weights and settings of these parts from others', in seconds.

    They come of all JSON files, and of the size, the beginning and the end of each file of weights: two checkpoints
    that differ only in between have equal digits, which no training leaves. Raises ConfigError for an unreadable file.
    """
    digest = hashlib.sha256()
    for part in parts:
        for path in sorted((checkpoint / part).iterdir()):
            if path.suffix not in (".json", ".safetensors"):
                continue
            try:
                _add(digest, path)
            except OSError as error:
                raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from error
    return digest.hexdigest()[:16]


def _add(digest: hashlib._Hash, path: Path) -> None:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        digest.update(f"{path.parent.name}/{path.name} {size}\n".encode())
        file.seek(0)
        digest.update(file.read() if path.suffix == ".json" else file.read(_SAMPLE_BYTES))
        if path.suffix != ".json":
            file.seek(max(size - _SAMPLE_BYTES, 0))
            digest.update(file.read(_SAMPLE_BYTES))
