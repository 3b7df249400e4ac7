"""The runner ``stepping``: stages without a model whose stage runs go on from snapshots, as those that draw pictures.

A plug-in, installed for a benchmark and the processes that it starts: ``installed``.
"""

import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from benchmarks.paced import STAGE
from omni_jobs.pipelines.declarations import ProcessorDeclaration, RunnerDeclaration
from omni_jobs.pipelines.engine_settings import EngineSettings

__all__ = [
    "EVERY",
    "STEPPING",
    "STEPS",
    "STEP_S",
    "SteppingEngine",
    "after",
    "answer",
    "installed",
    "lost_steps",
    "write_pipeline",
]

STEPS = 20
STEP_S = 0.1  # in which nothing is computed
EVERY = 5  # steps between two snapshots
_RUNNER = "benchmarks.stepping_runner"
_CONFIG = """
name: {name}
version: "1"
accepts: [text]
stages:
  {stage}:
    kind: stepping
    processor: step
    produces: text
    slots: {slots}
    engine: {{log: {log}}}
outputs:
  text: {{stage: {stage}}}
"""


class SteppingEngine(EngineSettings):
    """``log``: the directory in which each worker notes the steps that it takes."""

    log: Path


STEPPING = RunnerDeclaration(
    implementation=f"{_RUNNER}:SteppingRunner",
    engine=f"{__name__}:SteppingEngine",
    processors={"step": ProcessorDeclaration(f"{_RUNNER}:StepProcessor", "stepping")},
    produces=frozenset({"text"}),
    blocking_prompts=False,
)


@contextmanager
def installed(directory: Path) -> Iterator[None]:
    """Install the plug-in in this new directory, for this process and those that it starts meanwhile."""
    found = directory / "stepping-1.dist-info"
    found.mkdir(parents=True)
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: stepping\nVersion: 1\n", encoding="utf-8")
    entry = f"[omni_jobs.runners]\nstepping = {__name__}:STEPPING\n"
    (found / "entry_points.txt").write_text(entry, encoding="utf-8")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(directory), *([before] if before else ())])
    sys.path.append(str(directory))
    try:
        yield
    finally:
        sys.path.remove(str(directory))
        os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)


def write_pipeline(directory: Path, name: str, *, slots: int, log: Path) -> Path:
    """Make a directory of stage configs with a pipeline of one such stage, and return its file."""
    directory.mkdir()
    log.mkdir()
    file = directory / f"{name}.yaml"
    file.write_text(_CONFIG.format(name=name, stage=STAGE, slots=slots, log=log), encoding="utf-8")
    return file


def after(step: int, state: int) -> int:
    """Return the state after a step, of that before it."""
    return zlib.crc32(step.to_bytes(4, "big"), state)


def answer(text: str) -> str:
    """Return what a stage run makes of a text, if it takes each step once, in order, and forgets none."""
    state = zlib.crc32(text.encode())
    for step in range(1, STEPS + 1):
        state = after(step, state)
    return f"{text}: {state:08x}"


def lost_steps(log: Path) -> list[int]:
    """Return how many steps had to be taken again, for each time that another worker went on with a stage run."""
    taken: dict[str, list[tuple[float, int, str]]] = {}
    for file in log.iterdir():
        for line in file.read_text(encoding="utf-8").splitlines():
            at, step, text = line.split("\t")
            taken.setdefault(text, []).append((float(at), int(step), file.name))
    return [
        earlier - (later - 1)
        for steps in taken.values()
        for (_, earlier, before), (_, later, behind) in pairwise(sorted(steps))
        if before != behind
    ]
