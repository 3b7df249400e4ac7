"""Stage configs of the tests: shipped pipelines with other settings, and remote ones."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from omni_jobs.pipelines.loader import Pipelines, load_pipelines
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


def remote_stage(
    endpoint: str, processor: str, produces: str, model: str = "tiny", *, server: str = "local"
) -> dict[str, Any]:
    """A remote stage of a server."""
    engine = {"server": server, "endpoint": endpoint, "model": model}
    return {"kind": "remote", "processor": processor, "produces": produces, "engine": engine}


def remote_voice() -> dict[str, Any]:
    """A pipeline ``remote`` whose stage ``hear`` transcribes, and whose stage ``voice`` speaks."""
    return {
        "name": "remote",
        "version": "1",
        "accepts": ["text", "audio"],
        "voices": ["heart", "nova"],
        "stages": {
            "hear": remote_stage("transcriptions", "remote_transcription", "text"),
            "voice": remote_stage("speech", "remote_text", "waveform"),
        },
        "outputs": {"text": {"stage": "hear"}, "audio": {"stage": "voice"}},
    }


def with_remote(directory: Path) -> Pipelines:
    """The shipped pipelines and ``remote_voice``, written into a directory."""
    for path in packaged_directory("stage_configs").glob("*.yaml"):
        (directory / path.name).write_bytes(path.read_bytes())
    (directory / "remote.yaml").write_text(yaml.safe_dump(remote_voice()), encoding="utf-8")
    return load_pipelines(directory)
