"""The small JSON files of a checkpoint directory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omni_jobs.errors import ConfigError

__all__ = ["positive", "processor_part", "read_json"]


def read_json(path: Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    """A JSON object; ``default`` where there is no such file. Raises ConfigError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if default is not None:
            return default
        raise ConfigError("the checkpoint lacks this file", file=str(path)) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot be read: {error}", file=str(path)) from error
    if not isinstance(found, dict):
        raise ConfigError("not a JSON object", file=str(path))
    return found


def processor_part(model_dir: Path, part: str) -> dict[str, Any]:
    """Settings of ``image_processor`` or ``feature_extractor``: nested in the newer file, flat in the older one."""
    nested = read_json(model_dir / "processor_config.json", {}).get(part)
    return nested if isinstance(nested, dict) else read_json(model_dir / "preprocessor_config.json")


def positive(config: Mapping[str, Any], path: Sequence[str], file: str) -> int:
    """The positive integer at a path of keys. Raises ConfigError naming the file and the path."""
    found: Any = config
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise ConfigError("not a positive integer", file=file, field=".".join(path))
    return found
