"""Check that a checkpoint directory can be read, and read its small JSON files."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omni_jobs.errors import ConfigError


def check_checkpoint(directory: Path) -> None:
    """Raise ConfigError, naming the file, if a checkpoint directory is missing, unreadable or has dangling links."""
    try:
        for path in sorted(directory.iterdir()):
            if path.is_symlink() and not path.exists():
                raise ConfigError(
                    f"a link to {path.readlink()}, which is not there: a snapshot of the Hugging Face cache is links "
                    "out of its directory; mount or copy the files themselves (hf download … --local-dir DIRECTORY)",
                    file=str(path),
                )
            if path.is_file() and not os.access(path, os.R_OK):
                raise ConfigError(f"user {os.geteuid()} may not read it", file=str(path))
        readable = os.access(directory, os.R_OK | os.X_OK)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError("no such checkpoint directory", file=str(directory)) from error
    except PermissionError:
        readable = False
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(directory)) from error
    if not readable:
        raise ConfigError(f"user {os.geteuid()} may not read this checkpoint directory", file=str(directory))


def read_json(path: Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON object of a checkpoint's file, or ``default`` where there is no such file.

    Raise ConfigError for a file that cannot be read or is no object, and for a missing one without ``default``.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if default is not None:
            return default
        raise ConfigError("the checkpoint lacks this file", file=str(path)) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot be read: {error}", file=str(path)) from error
    if not isinstance(document, dict):
        raise ConfigError("not a JSON object", file=str(path))
    return document


def processor_part(model_dir: Path, part: str) -> dict[str, Any]:
    """Return the settings with which Hugging Face prepares a checkpoint's media.

    ``part`` is ``image_processor`` (images), ``video_processor`` or ``feature_extractor`` (audio). The newer
    processor_config.json has a section for each part; the older preprocessor_config.json has the settings at its top
    level, also those of videos unless video_preprocessor_config.json has them. Raises ConfigError where the older file
    is needed and missing, or a file cannot be read.
    """
    nested = read_json(model_dir / "processor_config.json", {}).get(part)
    if isinstance(nested, dict):
        return nested
    own = model_dir / "video_preprocessor_config.json"
    return read_json(own if part == "video_processor" and own.is_file() else model_dir / "preprocessor_config.json")


def positive(config: Mapping[str, Any], path: Sequence[str], file: str) -> int:
    """Return a positive integer of a checkpoint's JSON file, at this path of keys. Raise ConfigError naming both."""
    value: Any = config
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError("not a positive integer", file=file, field=".".join(path))
    return value
