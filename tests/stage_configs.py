"""A shipped pipeline with other settings of its engines."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from omni_jobs.settings import packaged_directory


def write_stage_configs(directory: Path, pipeline: str, engines: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write the pipeline's config, its stages' ``engine`` settings replaced by these, and return ``directory``."""
    directory.mkdir(parents=True)
    source = packaged_directory("stage_configs") / f"{pipeline}.yaml"
    config = yaml.safe_load(source.read_text(encoding="utf-8"))
    for stage, settings in engines.items():
        config["stages"][stage].setdefault("engine", {}).update(settings)
    (directory / source.name).write_text(yaml.safe_dump(config), encoding="utf-8")
    return directory
