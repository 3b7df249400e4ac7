"""The README of each example: its commands, run by a shell as they stand, make what it says, after an installation."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import load_file

from tests.e2e.plugins import EXAMPLES
from tests.oracles.captured_rows import check_rows

pytestmark = pytest.mark.timeout(600)

NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/pyproject.toml"))
PROGRAMS = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name not in NAMES)
TOP = EXAMPLES.parent
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def blocks(name: str) -> list[str]:
    text = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A directory that has the examples, as a clone has them, and nothing that a test leaves there."""
    shutil.copytree(EXAMPLES, tmp_path / "clone" / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "clone"


@pytest.fixture
def environment(tmp_path: Path, tiny_causal_lm: Path) -> Mapping[str, str]:
    """The variables of a user whose pip installs to a directory of its own, from no index."""
    found = {name: value for name, value in os.environ.items() if not name.startswith(("OMNI_JOBS_", "PIP_"))}
    pip = {"TARGET": str(tmp_path / "site"), "NO_INDEX": "1", "NO_BUILD_ISOLATION": "0", "CONFIG_FILE": os.devnull}
    found |= {f"PIP_{name}": value for name, value in pip.items()}
    ours = {"DATA_DIR": str(tmp_path / "data"), "API_PORT": "0", "DEVICE": os.environ.get("OMNI_JOBS_DEVICE", "cpu")}
    found |= {f"OMNI_JOBS_{name}": value for name, value in ours.items()}
    binaries = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return {**found, "PATH": binaries, "PYTHONPATH": str(tmp_path / "site"), "MODEL": str(tiny_causal_lm)}


def run(script: str, directory: Path, environment: Mapping[str, str]) -> str:
    command = ["bash", "-ec", script]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@contextmanager
def served(script: str, directory: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Run a script that serves until Ctrl-C, from when it says that it is up."""
    command = ["bash", "-ec", script]
    with open(directory.parent / "stderr", "w+") as errors:
        process = subprocess.Popen(
            command, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True,
            start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            is_up = any("omni-jobs is up" in line for line in process.stdout)
            assert is_up, (directory.parent / "stderr").read_text()[-4000:]
            yield
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.communicate(timeout=60)


def test_the_worker_without_a_stage(tmp_path: Path, environment: Mapping[str, str], tiny_causal_lm: Path) -> None:
    """The rows are those of Transformers."""
    assert PROGRAMS == ["rows"]
    (script,) = blocks("rows")
    printed = run(script, tmp_path, {**environment, **ONE_PROCESS, "PYTHONPATH": str(TOP)})
    check_rows(tiny_causal_lm, load_file(tmp_path / "rows.safetensors"), printed)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_the_commands_of_its_readme_do_what_it_says(name: str, clone: Path, environment: Mapping[str, str]) -> None:
    install, serve, submit = blocks(name)
    run(install, clone, environment)
    with served(serve, clone, environment):
        run(submit, clone, environment)
    made = re.findall(rf"^`({name}/[\w.]+)` ", (EXAMPLES / name / "README.md").read_text("utf-8"), re.MULTILINE)
    assert len(made) == 1
    assert {path.name for path in (clone / name).iterdir()} == {Path(made[0]).name, "result.json"}
    if made[0].endswith(".png"):
        with Image.open(clone / made[0]) as picture:
            assert picture.size == (128, 64)
    else:
        expected = {"plotter": "<svg .*</svg>", "questions": r".*\S.*", "tinted": r"\d+ rows of 128; .*"}[name]
        assert re.fullmatch(expected, (clone / made[0]).read_text("utf-8").strip(), re.DOTALL)
