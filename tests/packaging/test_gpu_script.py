"""``scripts/gpu`` runs: here on the CPU, where the differences that it measures must be small as well."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHON": sys.executable, **variables}
    command = [ROOT / "scripts" / "gpu", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=560, check=False)


@pytest.mark.parametrize(
    "chosen", ["twelve_mixed", pytest.param("denoising or code2wav or glm_image", marks=pytest.mark.long)]
)
def test_it_measures_and_writes(tmp_path: Path, chosen: str) -> None:
    pytest.importorskip("diffusers")
    written = tmp_path / "gpu.json"
    done = _run("--quick", "--json", str(written), "-q", "-k", chosen, GPU_DEVICE="cpu")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    figures = {figure["name"]: figure for figure in json.loads(written.read_text(encoding="utf-8"))}
    assert figures["12 mixed rows: largest difference from each alone"]["value"] <= 1e-5
    assert {figure["machine"] for figure in figures.values()} == {"CPU"}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_it_runs_stages_on_vllm_where_it_is_installed() -> None:
    pytest.importorskip("vllm")
    done = _run("--quick", "-q", "-k", "test_vllm_stages", GPU_DEVICE="cpu")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "4 passed, 1 skipped" in done.stdout  # a CPU has no graphs


def test_without_a_gpu_it_says_so() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = _run("--quick")
    assert (done.returncode, done.stderr) == (2, "scripts/gpu: torch finds no GPU\n")


def test_help_says_what_it_needs() -> None:
    assert "Needs Python 3.11" in _run("--help").stdout
