"""A worker of a remote stage needs no torch: its modules import none, nor vLLM, nor Transformers."""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[4] / "workers" / "runners" / "remote"
HEAVY = {"torch", "vllm", "transformers", "torchvision", "soundfile", "av", "PIL"}
LIGHT = ("declaration", "parameters", "engine_settings", "prompt")
HEAVY_FOR_THE_API = HEAVY | {"numpy", "httpx2"}


def loaded(modules: list[str]) -> set[str]:
    code = f"import importlib, sys; [importlib.import_module(name) for name in {modules}]; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_the_runner_imports_no_engine() -> None:
    modules = [f"workers.runners.remote.{path.stem}" for path in sorted(FOLDER.glob("*.py"))]
    assert len(modules) > 20
    assert not HEAVY & loaded(modules)


def test_the_light_modules_are_light() -> None:
    assert not HEAVY_FOR_THE_API & loaded([f"workers.runners.remote.{name}" for name in LIGHT])
