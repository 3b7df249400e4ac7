"""Packages of other people, installed with pip: the examples, one whose import fails, and one that lies."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
INSTALLED = ("pastel", "plotter", "questions")

PROJECT = """
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "0.1"

[project.entry-points."omni_jobs.families"]
{name} = "{name}.family:FAMILY"
"""

HALF = {
    "__init__.py": "",
    "family.py": 'raise ImportError("libhalf.so.1: cannot open shared object file")\n',
}

LIAR = {
    "__init__.py": "",
    "family.py": """
from omni_jobs.pipelines.declarations import ComponentDeclaration, Family, ProcessorDeclaration

FAMILY = Family(
    {
        None: ComponentDeclaration(
            "diffusion",
            produces=frozenset({"pixels"}),
            parameters="pastel.parameters:PastelParameters",
            implementation="liar.model:load_liar",
            resumable=True,
        )
    },
    processors={"liar": ProcessorDeclaration("pastel.processors:PastelProcessor", "diffusion")},
)
""",
    "model.py": """
from pastel.model import Pastel, load_pastel
from workers.runners.diffusion.model import RowOutput


def load_liar(model, device, dtype):
    return Liar(load_pastel(model, device, dtype).network)


class Liar(Pastel):
    \"\"\"Of pictures 24 pixels wide it gives floats, channels first.\"\"\"

    def finish(self, rows, wanted):
        for row, output in super().finish(rows, wanted):
            pixels = output.tensors["pixels"]
            if pixels.shape[1] == 24:
                output = RowOutput({"pixels": pixels.permute(2, 0, 1).float() / 255})
            yield row, output
""",
}

CONFIG = """
name: {name}
version: "1"
model:
  family: {name}
stages:
  draw:
    kind: diffusion
    processor: {name}
    produces: pixels
outputs:
  image: {{stage: draw}}
"""


def install(directory: Path) -> Path:
    """Install copies of all packages with pip, from no index, and return the directory that has them."""
    sources = []
    for name in INSTALLED:
        sources.append(directory / "sources" / name)
        shutil.copytree(EXAMPLES / name, sources[-1], ignore=shutil.ignore_patterns("__pycache__"))
    for name, files in {"half": HALF, "liar": LIAR}.items():
        sources.append(_write_package(directory / "sources" / name, name, files))
    site = directory / "site"
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--no-cache-dir", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", site, *sources]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return site


def _write_package(directory: Path, name: str, files: Mapping[str, str]) -> Path:
    (directory / name).mkdir(parents=True)
    (directory / "pyproject.toml").write_text(PROJECT.format(name=name), encoding="utf-8")
    for file, text in files.items():
        (directory / name / file).write_text(text, encoding="utf-8")
    return directory


def write_stage_configs(directory: Path) -> Path:
    """Return a directory with the stage configs of all these packages, the examples' own as they stand."""
    directory.mkdir()
    for name in INSTALLED:
        shutil.copy(EXAMPLES / name / f"{name}.yaml", directory)
    for name in ("half", "liar"):
        (directory / f"{name}.yaml").write_text(CONFIG.format(name=name), encoding="utf-8")
    return directory


@contextmanager
def on_the_path(site: Path) -> Iterator[None]:
    """Let this process and its children find the installed packages; afterwards this one has forgotten them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH")))))
        yield
    for name in [name for name in sys.modules if name.partition(".")[0] in (*INSTALLED, "half", "liar")]:
        del sys.modules[name]
