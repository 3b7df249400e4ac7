"""Workers that are lost in the middle of their steps: the next one goes on from the snapshot, to the same picture.

The model is the example of tests/example_diffusion. It notes each step that it takes, and can be held before one.
"""

import io
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.jobs import StoredSnapshot
from omni_jobs.maintenance.pruner import Pruner
from omni_jobs.settings import Settings
from omni_jobs.states import JobState
from omni_jobs.storage import open_store
from omni_jobs.views import JobView
from tests.integration.echo_stack import EchoStack, EchoWorker
from tests.oracles.tinted import metadata

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="an engine ends with its worker by a means of Linux"),
]

EXAMPLE = Path(__file__).parents[2] / "example_diffusion"
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
        return self.directory / "trace"

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
        return None if found is None else StoredSnapshot.from_json(found)

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
        self.launch("draw")

    def both_serve(self) -> None:
        """Replace workers that are gone, so that two serve."""
        alive = [worker for worker in self.workers if worker.process.poll() is None]
        for worker in [*alive, *(self.launch("draw") for _ in range(2 - len(alive)))]:
            self.serving(worker, START_S)


@pytest.fixture(scope="module")
def stack(valkey_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TracedStack]:
    directory = tmp_path_factory.mktemp("snapshots")
    package = directory / "package"
    (package / "traced").mkdir(parents=True)
    (package / "pyproject.toml").write_text(PROJECT)
    for name, code in {"__init__": "", "family": FAMILY, "model": MODEL}.items():
        (package / "traced" / f"{name}.py").write_text(code)
    sites = [metadata(directory / "site", package), metadata(directory / "site", EXAMPLE), package, EXAMPLE]
    url = f"sqlite:///{directory / 'jobs.sqlite'}"
    database = Database(url)
    database.migrate()
    database.close()
    with pytest.MonkeyPatch.context() as patch:
        for path in sites:
            patch.syspath_prepend(str(path))
        patch.setenv("PYTHONPATH", os.pathsep.join([*map(str, sites), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("TRACED", str(directory / "trace"))
        (directory / "trace").mkdir()
        from pastel.tiny_checkpoint import build_tiny_checkpoint

        checkpoint = build_tiny_checkpoint(directory / "checkpoint")
        stack = TracedStack(
            directory,
            url,
            valkey_server,
            {"OMNI_JOBS_SPOOL_DIR": str(directory / "spool")},
            pipeline="traced",
            config=CONFIG.format(checkpoint=checkpoint),
            modalities=("image",),
        )
        try:
            yield stack
        finally:
            stack.close()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("pastel", "traced")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def picture(stack: TracedStack) -> bytes:
    """What the job draws when nothing happens to it."""
    stack.both_serve()
    view = stack.ended(stack.draw(None), within_s=60)
    assert view.status is JobState.COMPLETED, view.error
    assert view.warnings == []
    assert [done for _, done in stack.steps()] == list(range(1, STEPS + 1))
    assert view.stages[0].progress is not None
    assert view.stages[0].progress.resumed_at is None
    return stack.pixels(view)


def check_resumed(stack: TracedStack, view: JobView, held_at: int, resumed_at: int) -> None:
    """It was taken up where the snapshot was, by another process, and no step more was taken twice."""
    assert view.status is JobState.COMPLETED, view.error
    assert view.warnings == []
    steps = stack.steps()
    first = steps[0][0]
    assert [done for pid, done in steps if pid == first][:held_at] == list(range(1, held_at + 1))
    assert [done for pid, done in steps if pid != first] == list(range(resumed_at + 1, STEPS + 1))
    assert held_at - resumed_at <= EVERY
    assert view.stages[0].attempt == 2
    progress = view.stages[0].progress
    assert progress is not None
    assert progress.resumed_at == (resumed_at or None)


@pytest.mark.parametrize("where", ["before the first snapshot", "at a random step"])
def test_kill_9_between_any_two_steps(stack: TracedStack, picture: bytes, where: str) -> None:
    held_at = 3 if where == "before the first snapshot" else random.randrange(EVERY, STEPS)
    print(f"killed at step {held_at}")
    stack.both_serve()
    job_id = stack.draw(held_at)
    stack.lose(stack.owner(job_id))
    stack.hold(None)
    view = stack.ended(job_id, within_s=60)
    check_resumed(stack, view, held_at, held_at // EVERY * EVERY)
    assert stack.pixels(view) == picture
    assert stack.snapshot(job_id) is None


def test_a_worker_that_is_stopped_past_its_lease_changes_nothing(stack: TracedStack, picture: bytes) -> None:
    """Its engine goes on and takes snapshots, which come when the stage run is another's, or has ended."""
    stack.both_serve()
    job_id = stack.draw(held_at=27)
    frozen = stack.owner(job_id)
    stack.freeze(frozen)
    stack.hold(None)
    view = stack.ended(job_id, within_s=60)
    check_resumed(stack, view, 27, 25)
    frozen.process.send_signal(signal.SIGCONT)
    assert frozen.process.wait(60) is not None
    after = stack.jobs.get(job_id)
    assert (after.status, after.stages[0].attempt) == (JobState.COMPLETED, 2)
    assert stack.pixels(after) == picture
    assert stack.snapshot(job_id) is None


def test_without_a_store_the_job_goes_on_and_says_so(stack: TracedStack, picture: bytes) -> None:
    stack.both_serve()
    job_id = stack.draw(held_at=12)
    log = stack.owner(job_id).log
    objects = stack.directory / "objects"
    objects.rename(stack.directory / "away")
    try:
        stack.hold(22)
        stack.until(lambda: log.read_text().count("a snapshot was not stored") or None, 60)
        stack.reached(job_id, 22, 10)
    finally:
        (stack.directory / "away").rename(objects)
    stack.hold(None)
    view = stack.ended(job_id, within_s=60)
    assert (view.status, view.stages[0].attempt) == (JobState.COMPLETED, 1)
    [warning] = view.warnings
    assert (warning.code, warning.stage) == ("snapshot_not_stored", "draw")
    assert "stage draw, key jobs/" in warning.message
    assert stack.pixels(view) == picture


def test_a_snapshot_that_is_damaged_is_named_and_all_steps_are_taken_again(stack: TracedStack, picture: bytes) -> None:
    stack.both_serve()
    job_id = stack.draw(held_at=21)
    stored = stack.snapshot(job_id)
    assert stored is not None
    jobs, shard, name = stored.ref.key.split("/", 2)
    path = stack.directory / "objects" / jobs / shard / name.replace("/", ",")
    path.write_bytes(path.read_bytes()[:-8])
    stack.lose(stack.owner(job_id))
    stack.hold(None)
    view = stack.ended(job_id, within_s=60)
    assert view.status is JobState.COMPLETED
    [warning] = view.warnings
    assert (warning.code, warning.stage) == ("snapshot_unusable", "draw")
    assert f"key {stored.ref.key}" in warning.message
    steps = stack.steps()
    assert [done for pid, done in steps if pid != steps[0][0]] == list(range(1, STEPS + 1))
    assert stack.pixels(view) == picture


def test_nothing_is_left_of_them(stack: TracedStack, picture: bytes) -> None:
    """Garbage goes at once, and what killed workers left with the sweep."""
    keep: dict[str, float] = {"orphan_after_s": -1.0, "keep_artifacts_s": 1e9}
    settings = stack.settings.model_copy(update=keep)
    assert isinstance(settings, Settings)
    deadline = time.monotonic() + 60
    store = open_store(settings)
    while any("snapshot" in each.key for each in store.list()):  # a worker may be about to delete one itself
        Pruner(stack.jobs, store, settings).once()
        assert time.monotonic() < deadline
    assert all("/artifacts/" in each.key for each in store.list())
