"""The faults of a pipeline's versions: operators go on to the next one under load, and drain what serves."""

import signal
import time
from contextlib import suppress

from omni_jobs.errors import DatabaseUnavailable, NotFound
from omni_jobs.jobs import Jobs
from tests.chaos.faults.fault import Chaos, Nothing, NotUndone, fault, wait_gone
from tests.chaos.pipeline_files import ASKING, ECHO
from tests.chaos.processes import Supervised
from tests.chaos.stack import Worker

_START_S = 120.0  # for an API server to answer, on a busy machine
_EMPTY_S = 300.0  # for a draining version to have no jobs left, under all the other faults
_SETTLED_S = 20.0  # after the drain; operators are told 10 s, and faults here hold a submit up for some more


@fault("versions", weight=2)
def upgrade(chaos: Chaos) -> None:
    """A rolling upgrade of a pipeline: the old version drains while the new one serves, and then has no workers."""
    files = chaos.stack.files
    old, new = files.version(ECHO), files.write_next()
    first, rest = _halves(chaos)
    for worker in first:
        _let_serve(chaos, worker, new)
    for process in chaos.stack.rescuers:
        with chaos.owned(process.name):
            wait_gone(process, process.signal(signal.SIGTERM))
    for process in chaos.stack.apis:
        _restart_api(chaos, process)
    chaos.wait(2, 6)
    is_seen = not chaos.stopping  # clients have submitted since
    with chaos.stack.jobs() as jobs:
        jobs.set_draining(f"{ECHO}@{old}", is_draining=True)
        _wait_until_empty(jobs, f"{ECHO}@{old}")
    for worker in rest:
        _let_serve(chaos, worker, new)
    if not is_seen:
        raise Nothing("the run ended before the new version had a job")


@fault("versions", weight=2)
def drain_version(chaos: Chaos) -> None:
    """The version that serves takes no new jobs for some seconds: those that it has go on, and clients come again."""
    pipeline = chaos.random.choice((ECHO, ECHO, ASKING))
    reference = f"{pipeline}@{chaos.stack.files.version(pipeline)}"
    with chaos.stack.jobs() as jobs:
        try:
            jobs.set_draining(reference, is_draining=True)
        except NotFound:
            raise Nothing("no server has told of its versions yet") from None
        try:
            chaos.wait(2, 6)
        finally:
            jobs.set_draining(reference, is_draining=False)


def _halves(chaos: Chaos) -> tuple[list[Worker], list[Worker]]:
    """The workers of echo in two parts, each with some of every stage."""
    first: list[Worker] = []
    rest: list[Worker] = []
    workers = [worker for worker in chaos.stack.workers if worker.pipeline == ECHO]
    for stage in sorted({worker.stage for worker in workers}):
        of_stage = [worker for worker in workers if worker.stage == stage]
        chaos.random.shuffle(of_stage)
        half = len(of_stage) // 2
        first += of_stage[:half]
        rest += of_stage[half:]
    return first, rest


def _let_serve(chaos: Chaos, worker: Worker, version: str) -> None:
    """Start a worker again, with another version."""
    with chaos.owned(worker.process.name):
        worker.version = version
        wait_gone(worker.process, worker.process.signal(signal.SIGTERM))


def _restart_api(chaos: Chaos, process: Supervised) -> None:
    """Start an API server again, and wait until it answers, so that an upgrade never takes both away at a time."""
    with chaos.owned(process.name):
        wait_gone(process, process.signal(signal.SIGTERM))
        deadline = time.monotonic() + _START_S
        while not chaos.stack.answers(process):
            if time.monotonic() > deadline:
                raise NotUndone(f"{process.name} was started again and does not answer after {_START_S:.0f} s")
            time.sleep(0.1)


def _wait_until_empty(jobs: Jobs, reference: str) -> None:
    """Wait until a version that drains has no job left and, after all submits have settled, has not had one anew."""
    began = empty_since = time.monotonic()
    while time.monotonic() < empty_since + _SETTLED_S:
        left = _left(jobs, reference)
        if left != {}:
            empty_since = time.monotonic()
        if time.monotonic() > began + _EMPTY_S:
            raise NotUndone(f"{reference} drains, and after {_EMPTY_S:.0f} s it still has jobs: {left}")
        time.sleep(0.3)


def _left(jobs: Jobs, reference: str) -> dict[str, int] | None:
    """How many unfinished jobs of each state a version has; None while the database does not answer."""
    with suppress(DatabaseUnavailable):
        work = jobs.version_work()
        [version] = [each for each in jobs.known_versions() if each.reference == reference]
        jobs_left = work[version.pipeline].jobs if version.pipeline in work else {}
        return {state.value: count for state, count in jobs_left.items()}
    return None
