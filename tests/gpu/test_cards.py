"""The device that a stage is given on a host with an NVIDIA card, and the card's name in the locks of loading."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = """
import asyncio, json, os, sys
from pathlib import Path
import torch
from omni_jobs.errors import ConfigError
from workers.consumer.load_turns import card_names, turn_to_load
from workers.stages.devices import resolve_device
found = {}
for wanted in ("auto", "cuda", "cuda:0", "cuda:7"):
    try:
        found[wanted] = resolve_device(wanted, "denoise")
    except ConfigError as error:
        found[wanted] = str(error)
names = card_names(range(1), os.environ)
async def locked():
    async with turn_to_load(Path(sys.argv[1]), names):
        return sorted(os.listdir(sys.argv[1]))
found["locks"] = asyncio.run(locked())
if torch.cuda.is_available():
    torch.zeros(1, device="cuda")
    found["uuid"] = str(torch.cuda.get_device_properties(0).uuid)
print(json.dumps(found))
"""


def _found(directory: Path, **variables: str) -> dict[str, object]:
    environment = {name: value for name, value in os.environ.items() if not name.endswith("VISIBLE_DEVICES")}
    command = [sys.executable, "-c", SCRIPT, str(directory)]
    done = subprocess.run(
        command, env=environment | variables, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_card_is_found_and_locked_by_its_number_or_uuid(device: torch.device, tmp_path: Path) -> None:
    if device.type != "cuda":
        pytest.skip("needs an NVIDIA card")
    plain = _found(tmp_path / "plain")
    assert plain["auto"] == plain["cuda"] == ["cuda", None]
    assert plain["cuda:0"] == ["cuda", 0]
    assert "CUDA devices are visible" in str(plain["cuda:7"])
    assert plain["locks"] == ["0.lock"]
    uuid = f"GPU-{plain['uuid']}"
    named = _found(tmp_path / "named", CUDA_VISIBLE_DEVICES=uuid)
    assert (named["auto"], named["locks"], named["uuid"]) == (["cuda", None], [f"{uuid}.lock"], plain["uuid"])


def test_a_hidden_card_is_an_error_and_never_the_cpu(device: torch.device, tmp_path: Path) -> None:
    if device.type != "cuda":
        pytest.skip("needs an NVIDIA card")
    hidden = _found(tmp_path, CUDA_VISIBLE_DEVICES="")
    for wanted in ("auto", "cuda"):
        assert "torch" in str(hidden[wanted])
        assert "NVIDIA driver" in str(hidden[wanted])
