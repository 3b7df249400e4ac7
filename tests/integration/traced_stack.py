"""A pipeline of one stage, whose diffusion model notes its steps and can be held, with real workers.

The model is the example of examples/pastel. The workers' disk can be made full: ``faulty_worker``, TEST_FULL.
"""

import io
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.database.tables import decode_json
from omni_jobs.jobs import StoredSnapshot
from omni_jobs.storage import open_store
from omni_jobs.views import JobView
from tests.integration.echo_stack import EchoStack, EchoWorker
from tests.oracles.tinted import metadata

EXAMPLE = Path(__file__).parents[2] / "examples" / "pastel"
STEPS, EVERY = 50, 5
START_S = 240.0

PROJECT = """
[project]
name = "traced"
version = "0.1"

[project.entry-points."omni_jobs.families"]
traced = "traced.family:FAMILY"
"""

FAMILY = """
from omni_jobs.pipelines.declarations import ComponentDeclaration, Family, ProcessorDeclaration

FAMILY = Family(
    {
        None: ComponentDeclaration(
            "diffusion",
            produces=frozenset({"pixels"}),
            parameters="pastel.parameters:PastelParameters",
            implementation="traced.model:load_traced",
            resumable=True,
        )
    },
    processors={"traced": ProcessorDeclaration("pastel.processors:PastelProcessor", "diffusion")},
)
"""

MODEL = """
import os
import time
from pathlib import Path

from pastel.model import Pastel, load_pastel


def load_traced(model, device, dtype):
    return Traced(load_pastel(model, device, dtype).network)


class Traced(Pastel):
    def step(self, rows):
        directory = Path(os.environ["TRACED"])
        while any(row.steps_done == held_at(directory) for row in rows):
            time.sleep(0.01)
        super().step(rows)
        with open(directory / "steps", "a") as file:
            file.write("".join(f"{os.getpid()} {row.steps_done}\\n" for row in rows))


def held_at(directory):
    try:
        return int((directory / "hold").read_text() or -1)
    except FileNotFoundError:
        return None
"""

CONFIG = f"""
name: traced
version: "1"
model:
  family: traced
  path: {{checkpoint}}
stages:
  draw:
    kind: diffusion
    processor: traced
    produces: pixels
    slots: 4
    time_limit_s: 120
    retries: {{{{worker_lost: 20, fenced: 20}}}}
    engine: {{{{snapshot_every_s: 0, snapshot_every_steps: {EVERY}}}}}
outputs:
  image: {{{{stage: draw}}}}
"""


class TracedStack(EchoStack):
    """A stack whose model notes its steps."""

    @property
    def trace(self) -> Path:
        return Path(os.environ["TRACED"])

    def hold(self, step: int | None) -> None:
        """Hold the model before it takes the step after this one; None: let it go on."""
        new = self.trace / "new"
        if step is None:
            (self.trace / "hold").unlink(missing_ok=True)
        else:
            new.write_text(str(step))
            new.rename(self.trace / "hold")

    def steps(self) -> list[tuple[int, int]]:
        """Each step that was taken: the engine's process, and the row's number of steps after it."""
        path = self.trace / "steps"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(pid), int(done)) for pid, done in (line.split() for line in lines)]

    def forget_steps(self) -> None:
        (self.trace / "steps").unlink(missing_ok=True)

    def draw(self, held_at: int | None) -> str:
        """Submit a picture; it is held after so many steps, and then its last snapshot is recorded."""
        self.forget_steps()
        self.hold(held_at)
        job_id = self.submit("a lighthouse", draw={"steps": STEPS})
        if held_at is not None:
            self.reached(job_id, held_at, held_at // EVERY * EVERY)
        return job_id

    def reached(self, job_id: str, step: int, snapshot: int) -> None:
        self.until(lambda: (self.steps() or [(0, 0)])[-1][1] == step or None, 60)
        if snapshot:
            self.until(lambda: getattr(self.snapshot(job_id), "steps_done", 0) == snapshot or None, 60)

    def snapshot(self, job_id: str) -> StoredSnapshot | None:
        with self.database.begin() as tx:
            query = text("SELECT snapshot FROM stage_runs WHERE job_id = :job")
            found = tx.execute(query, {"job": job_id}).scalar_one()
        return None if found is None else StoredSnapshot.of(decode_json(found))

    def owner(self, job_id: str) -> EchoWorker:
        by_id = {view.id: view.pid for view in self.jobs.workers()}
        pid = by_id[self.jobs.get(job_id).stages[0].worker or ""]
        return next(worker for worker in self.workers if worker.process.pid == pid)

    def pixels(self, view: JobView) -> bytes:
        [artifact] = view.artifacts
        ref = self.jobs.artifact(view.id, artifact.name).ref
        return Image.open(io.BytesIO(open_store(self.settings).read(ref, max_bytes=1 << 20))).tobytes()

    def lose(self, worker: EchoWorker) -> None:
        """Kill a worker, and start another, for the next test."""
        worker.stop(signal.SIGKILL)
        self.launch("draw", fault="full")

    def serve(self, number: int = 2) -> None:
        """Replace workers that are gone, so that so many serve."""
        alive = [worker for worker in self.workers if worker.process.poll() is None]
        for worker in [*alive, *(self.launch("draw", fault="full") for _ in range(number - len(alive)))]:
            self.serving(worker, START_S)

    def spooled(self) -> set[str]:
        """What engines and their workers hand each other at the moment."""
        return {path.name for path in (self.directory / "spool").glob("*/*")} - {".lock"}


@contextmanager
def traced_checkpoint(directory: Path) -> Iterator[Path]:
    """A checkpoint of the traced model, with its packages installed for this process and its workers."""
    package = directory / "package"
    (package / "traced").mkdir(parents=True)
    (package / "pyproject.toml").write_text(PROJECT)
    for name, code in {"__init__": "", "family": FAMILY, "model": MODEL}.items():
        (package / "traced" / f"{name}.py").write_text(code)
    sites = [metadata(directory / "site", package), metadata(directory / "site", EXAMPLE), package, EXAMPLE]
    with pytest.MonkeyPatch.context() as patch:
        for path in sites:
            patch.syspath_prepend(str(path))
        patch.setenv("PYTHONPATH", os.pathsep.join([*map(str, sites), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("TRACED", str(directory / "trace"))
        patch.setenv("TEST_FULL", str(directory / "full"))
        (directory / "trace").mkdir()
        from pastel.tiny_checkpoint import build_tiny_checkpoint

        yield build_tiny_checkpoint(directory / "checkpoint")
    for name in [name for name in sys.modules if name.partition(".")[0] in ("pastel", "traced")]:
        del sys.modules[name]


@contextmanager
def traced_stack(
    directory: Path, broker_url: str, checkpoint: Path, options: Mapping[str, str] | None = None
) -> Iterator[TracedStack]:
    url = f"sqlite:///{directory / 'jobs.sqlite'}"
    database = Database(url)
    database.migrate()
    database.close()
    stack = TracedStack(
        directory,
        url,
        broker_url,
        {"OMNI_JOBS_SPOOL_DIR": str(directory / "spool"), **(options or {})},
        pipeline="traced",
        config=CONFIG.format(checkpoint=checkpoint),
        modalities=("image",),
    )
    try:
        yield stack
    finally:
        stack.close()
