"""What the load of a stage's model takes: seconds, and memory of the host and the device beside the weights' size."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from tests.gpu import large_checkpoints
from tests.gpu.conftest import Record
from tests.gpu.large_checkpoints import LARGE, SMALL

ROOM = 0.25  # of the weights, for all else: the largest weight, and what libraries keep
LEAST_ROOM = 96 << 20
BUILDERS = {
    "qwen_image": large_checkpoints.qwen_image,
    "glm_image": large_checkpoints.glm_image,
    "qwen2_5_omni": large_checkpoints.qwen2_5_omni,
}
FIGURES = {
    "private": "most host memory",
    "all": "most host memory, with pages of files",
    "device": "the device's memory",
    "device_peak": "the device's memory at most",
}
COMPONENTS = {"qwen_image": "denoise", "glm_image": "denoise", "qwen2_5_omni": "code2wav"}


@pytest.mark.parametrize("family", COMPONENTS)
def test_host_memory_never_holds_weights_twice(
    family: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    device: torch.device,
    quick: bool,
    record: Record,
) -> None:
    """Neither on their way to a device, where it holds none, nor on a CPU, where they stay."""
    tiny: Path = request.getfixturevalue(family)
    checkpoint: Path = BUILDERS[family](tiny, tmp_path / family, device, SMALL if quick else LARGE)
    ways = ("stage", "host") if (device.type, family) == ("cuda", "qwen_image") else ("stage",)
    found = {way: _load(checkpoint, tiny, device, way) for way in ways}
    weights = int(found["stage"]["device"]) if device.type == "cuda" else _weights(checkpoint)
    for way, figures in found.items():
        name = f"{family}, {weights / 1e9:.2f} GB, {'loaded' if way == 'stage' else 'loaded on the host and moved'}"
        record(name, "s", [figures["seconds"]])
        for key, words in FIGURES.items():
            if key in figures:
                record(f"{name}: {words}", "GB", [figures[key] / 1e9])
    room = max(ROOM * weights, LEAST_ROOM)
    assert found["stage"]["private"] <= room + (weights if device.type == "cpu" else 0)
    if device.type == "cuda":
        assert found["stage"]["device_peak"] <= weights + room


def _load(checkpoint: Path, tiny: Path, device: torch.device, way: str) -> Mapping[str, float]:
    family = checkpoint.name
    command = [sys.executable, "-m", "tests.gpu.loading", str(checkpoint), str(tiny), family]
    command += [COMPONENTS[family], str(device), way]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    figures: Mapping[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _weights(checkpoint: Path) -> int:
    """Return the bytes of the loaded weights: those in bfloat16 take twice as many on a CPU."""
    wide = {"transformer", "text_encoder"}
    files = list(checkpoint.glob("*.safetensors"))
    files += [file for part in wide for file in checkpoint.glob(f"{part}/*.safetensors")]
    return sum(file.stat().st_size * (2 if file.parent.name in wide else 1) for file in files)
