"""What the tests of a GPU share: the device, checkpoints, and the figures that ``scripts/gpu --json`` writes."""

import json
import os
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

Record = Callable[[str, str, list[float]], None]
"""Takes the name of a figure, its unit and its values."""


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device(os.environ.get("GPU_DEVICE", "cuda"))


@pytest.fixture(scope="session")
def quick() -> bool:
    """Whether only small sizes are measured."""
    return "GPU_QUICK" in os.environ


@pytest.fixture(scope="session")
def record(device: torch.device) -> Iterator[Record]:
    """A function that keeps a figure."""
    figures: list[dict[str, object]] = []
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"

    def keep(name: str, unit: str, runs: list[float]) -> None:
        value = statistics.median(runs)
        figures.append({"name": name, "value": value, "unit": unit, "runs": runs, "machine": machine})
        print(f"\n{name}: {value:.4g} {unit} ({min(runs):.4g} to {max(runs):.4g}, {len(runs)} runs)")

    yield keep
    if (path := os.environ.get("GPU_JSON")) is not None:
        Path(path).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


@pytest.fixture(scope="session")
def qwen_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from workers.models.qwen_image.tiny_checkpoint import build_tiny_checkpoint

    return build_tiny_checkpoint(tmp_path_factory.mktemp("qwen_image") / "checkpoint", seed=0)


@pytest.fixture(scope="session")
def glm_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from workers.models.glm_image.tiny_checkpoint import build_tiny_checkpoint

    return build_tiny_checkpoint(tmp_path_factory.mktemp("glm_image") / "checkpoint", seed=0)


@pytest.fixture(scope="session")
def qwen2_5_omni(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from workers.models.qwen2_5_omni.tiny_checkpoint import build_tiny_checkpoint

    return build_tiny_checkpoint(tmp_path_factory.mktemp("qwen2_5_omni") / "checkpoint", seed=0)


@pytest.fixture(scope="session")
def qwen_image_edit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from workers.models.qwen_image.tiny_edit_checkpoint import build_tiny_checkpoint

    return build_tiny_checkpoint(tmp_path_factory.mktemp("qwen_image_edit") / "checkpoint", seed=0)


@pytest.fixture(scope="session")
def qwen3_omni(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from workers.models.qwen3_omni.tiny_checkpoint import build_tiny_checkpoint

    return build_tiny_checkpoint(tmp_path_factory.mktemp("qwen3_omni") / "checkpoint", seed=0)


@pytest.fixture(scope="session")
def wan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from workers.models.wan.tiny_checkpoint import build_tiny_checkpoint

    return build_tiny_checkpoint(tmp_path_factory.mktemp("wan") / "checkpoint", seed=0)
