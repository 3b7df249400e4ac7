"""Workers that are lost in the middle of their steps: the next one goes on from the snapshot, to the same picture.

Snapshots that cannot be stored cost nothing else.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from omni_jobs.maintenance.pruner import Pruner
from omni_jobs.settings import Settings
from omni_jobs.states import JobState
from omni_jobs.storage import open_store
from omni_jobs.views import JobView
from tests.integration.traced_stack import EVERY, STEPS, TracedStack, traced_checkpoint, traced_stack
from tests.services.fault_proxy import FaultProxy
from tests.services.seaweedfs import SeaweedFS

Trouble = Callable[[TracedStack], AbstractContextManager[None]]

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="an engine ends with its worker by a means of Linux"),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with traced_checkpoint(tmp_path_factory.mktemp("traced")) as checkpoint:
        yield checkpoint


@pytest.fixture(scope="module")
def stack(valkey_server: str, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TracedStack]:
    with traced_stack(tmp_path_factory.mktemp("snapshots"), valkey_server, checkpoint) as stack:
        yield stack


@pytest.fixture(scope="module")
def picture(stack: TracedStack) -> bytes:
    """What the job draws when nothing happens to it."""
    stack.serve()
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
    stack.serve()
    job_id = stack.draw(held_at)
    stack.lose(stack.owner(job_id))
    stack.hold(None)
    view = stack.ended(job_id, within_s=60)
    check_resumed(stack, view, held_at, held_at // EVERY * EVERY)
    assert stack.pixels(view) == picture
    assert stack.snapshot(job_id) is None


def test_a_worker_that_is_stopped_past_its_lease_changes_nothing(stack: TracedStack, picture: bytes) -> None:
    """Its engine goes on and takes snapshots, which come when the stage run is another's, or has ended."""
    stack.serve()
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


@contextmanager
def store_away(stack: TracedStack) -> Iterator[None]:
    objects, away = stack.directory / "objects", stack.directory / "away"
    objects.rename(away)
    yield
    away.rename(objects)


@contextmanager
def full_disk(_: TracedStack) -> Iterator[None]:
    full = Path(os.environ["TEST_FULL"])
    full.touch()
    yield
    full.unlink()


@pytest.mark.parametrize(
    ("trouble", "says"), [(store_away, "no such file or directory"), (full_disk, "no space left on the device")]
)
def test_what_cannot_be_stored_costs_the_snapshot_alone(
    stack: TracedStack, picture: bytes, trouble: Trouble, says: str
) -> None:
    stack.serve()
    spooled = stack.spooled()
    check_goes_on_without(stack, picture, trouble, says)
    assert stack.spooled() == spooled
    assert list((stack.directory / "objects" / ".partial").iterdir()) == []


def test_while_s3_is_away_the_job_goes_on_and_says_so(
    valkey_server: str, seaweedfs: SeaweedFS, checkpoint: Path, picture: bytes, tmp_path: Path
) -> None:
    with FaultProxy(seaweedfs.endpoint_url, http=True) as proxy:
        options = {
            "OMNI_JOBS_STORAGE_URL": f"s3://{seaweedfs.bucket}/test-{uuid4().hex}",
            "OMNI_JOBS_S3_ENDPOINT_URL": proxy.url,
        }

        @contextmanager
        def s3_away(_: TracedStack) -> Iterator[None]:
            with proxy.fault(refuse=True):
                yield

        with traced_stack(tmp_path, valkey_server, checkpoint, options) as stack:
            stack.serve(1)
            check_goes_on_without(stack, picture, s3_away, "storing the object failed")
            assert stack.spooled() == set()
            check_nothing_is_left(stack)


def check_goes_on_without(stack: TracedStack, picture: bytes, trouble: Trouble, says: str) -> None:
    """A job's snapshots cannot be stored for some steps: it says so, has later ones, and draws the same picture."""
    job_id = stack.draw(held_at=12)
    log = stack.owner(job_id).log
    before = missed(log)
    with trouble(stack):
        stack.hold(22)
        stack.until(lambda: missed(log) > before or None, 60)
        stack.reached(job_id, 22, 10)
    stack.hold(32)
    stack.reached(job_id, 32, 30)
    stack.hold(None)
    view = stack.ended(job_id, within_s=60)
    assert (view.status, view.stages[0].attempt) == (JobState.COMPLETED, 1), view.error
    [warning] = view.warnings
    assert (warning.code, warning.stage) == ("snapshot_not_stored", "draw")
    assert says in warning.message
    assert "stage draw, key jobs/" in warning.message
    assert stack.pixels(view) == picture


def missed(log: Path) -> int:
    return log.read_text().count("a snapshot was not stored")


@pytest.mark.parametrize("damaged", ["newest", "both"])
def test_a_snapshot_that_is_damaged_is_named_and_costs_the_steps_to_the_one_before(
    stack: TracedStack, picture: bytes, damaged: str
) -> None:
    stack.serve()
    job_id = stack.draw(held_at=11)  # a snapshot is recorded here, because a newer one may take a waiting one's place
    stack.hold(21)
    stack.reached(job_id, 21, 20)
    stored = stack.snapshot(job_id)
    assert stored is not None
    assert stored.before is not None
    for key in stored.keys if damaged == "both" else stored.keys[:1]:
        jobs, shard, name = key.split("/", 2)
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
    first = 1 if damaged == "both" else stored.before.steps_done + 1
    assert [done for pid, done in steps if pid != steps[0][0]] == list(range(first, STEPS + 1))
    assert stack.pixels(view) == picture


def test_nothing_is_left_of_them(stack: TracedStack, picture: bytes) -> None:
    check_nothing_is_left(stack)


def check_nothing_is_left(stack: TracedStack) -> None:
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
