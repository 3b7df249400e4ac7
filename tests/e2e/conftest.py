"""The embedded stack with a tiny Qwen-Omni, started once for many tests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from omni_jobs.client import Client
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from tests.services.vllm_server import vllm_server, vllm_server_process

__all__ = ["vllm_server", "vllm_server_process"]

SHIPPED = Path(__file__).parents[2] / "stage_configs"


def stage_configs(directory: Path, change: Callable[[dict[str, Any]], None] = lambda _: None) -> Path:
    """The shipped stage configs in a directory of their own, Qwen2.5-Omni's changed."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in SHIPPED.glob("*.yaml"):
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        if data["name"] == "qwen2_5_omni":
            change(data)
        (directory / path.name).write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return directory


@contextmanager
def omni_stack(
    directory: Path,
    checkpoint: Path,
    change: Callable[[dict[str, Any]], None] = lambda _: None,
    pipeline: str = "qwen2_5_omni",
) -> Iterator[tuple[EmbeddedStack, Client]]:
    """A whole stack on this checkpoint, and a client of its API."""
    settings = Settings(
        data_dir=directory / "data",
        stage_configs=stage_configs(directory / "stage_configs", change),
        models={pipeline: checkpoint},
        spool_dir=directory / "spool",
        lease_s=5.0,
    )
    with EmbeddedStack(settings, pipelines=[pipeline]) as stack, Client(stack.url) as client:
        yield stack, client


@pytest.fixture(scope="session")
def e2e_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("e2e")
