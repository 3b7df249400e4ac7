"""Real workers on real services: the way of a job, of a message that is no doorbell, of a cancel, of a stop."""

import base64
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from celery.app.control import Inspect

from omni_jobs.broker.doorbell import TASK
from omni_jobs.database.database import Database
from omni_jobs.states import JobState, StageRunState
from omni_jobs.storage import job_prefix
from tests.integration.echo_stack import EchoStack
from tests.services.postgres import EmptyDatabases, as_running_role

EARLY_S = 0.01
"""How much too early a timer may fire: uvloop counts whole milliseconds."""

SCRIPTS = "Grüße, 你好, مرحبا, नमस्ते, 🎉👩‍👩‍👧"


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def jobs_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a fresh, migrated database."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('jobs') / 'jobs.sqlite'}"
        with closing(Database(url)) as database:
            database.migrate()
        yield url
        return
    databases: EmptyDatabases = request.getfixturevalue("empty_databases")
    url = databases.take()
    yield as_running_role(url)
    databases.give_back(url)


@pytest.fixture(scope="module")
def stack(jobs_url: str, valkey_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EchoStack]:
    """One worker per stage, for all tests of this module."""
    stack = EchoStack(tmp_path_factory.mktemp("echo"), jobs_url, valkey_server)
    try:
        stack.start("first", "second")
        yield stack
    finally:
        stack.close()


def lives(stack: EchoStack) -> None:
    """Both workers still work."""
    assert stack.ended(stack.submit("alive")).status is JobState.COMPLETED
    assert all(worker.process.poll() is None for worker in stack.workers)


@pytest.mark.parametrize("payload_bytes", [0, 100_000], ids=["inline", "stored"])
def test_a_job_passes_both_stages(stack: EchoStack, payload_bytes: int) -> None:
    view = stack.ended(stack.submit(SCRIPTS, first={"payload_bytes": payload_bytes}))
    assert view.status is JobState.COMPLETED
    assert view.result is not None
    assert view.result["text"] == SCRIPTS
    first, second = view.stages
    assert (first.attempt, second.attempt) == (1, 1)
    assert first.payload_bytes >= payload_bytes
    assert second.payload_bytes == 0  # nobody takes it
    stored = list((stack.directory / "objects").rglob(f"{view.id},payloads,first,1"))
    assert bool(stored) == bool(payload_bytes)


def test_many_jobs_at_once_each_run_once(stack: EchoStack) -> None:
    ids = [stack.submit(f"job {n}", first={"delay_s": 0.05}, second={"delay_s": 0.05}) for n in range(60)]
    views = [stack.ended(job_id) for job_id in ids]
    assert {view.status for view in views} == {JobState.COMPLETED}
    assert [view.result and view.result["text"] for view in views] == [f"job {n}" for n in range(60)]
    assert {run.attempt for view in views for run in view.stages} == {1}


def test_progress_shows_while_a_stage_runs(stack: EchoStack) -> None:
    job_id = stack.submit(second={"delay_s": 1.0})
    view = stack.running(job_id, "second")
    progress = view.stages[1].progress
    assert progress is not None
    assert (progress.total, progress.unit) == (1000, "ms")
    running = view.stages[1]
    assert running.load_s is not None
    assert (running.run_s, running.store_s) == (None, None)
    ended = stack.ended(job_id)
    assert ended.status is JobState.COMPLETED
    first, second = ended.stages
    assert second.load_s == running.load_s
    assert second.run_s is not None
    assert 1.0 - EARLY_S <= second.run_s < 20
    for stage in (first, second):  # the worker's steps fit between the database's times of the attempt
        assert None not in (stage.load_s, stage.run_s, stage.store_s, stage.started_at, stage.finished_at)
        took_s = (stage.finished_at - stage.started_at).total_seconds()  # type: ignore[operator]
        assert stage.load_s + stage.run_s + stage.store_s <= took_s + 0.001  # type: ignore[operator]


def test_doorbells_without_work_do_nothing(stack: EchoStack) -> None:
    job_id = stack.submit(ring=False, first={"delay_s": 0.3})
    for _ in range(50):
        stack.app.broker.ring({"echo.first", "echo.second"})
    view = stack.ended(job_id)
    assert view.status is JobState.COMPLETED
    assert [run.attempt for run in view.stages] == [1, 1]
    lives(stack)


def test_a_cancelled_job_stops_running(stack: EchoStack) -> None:
    job_id = stack.submit(first={"delay_s": 60})
    stack.running(job_id, "first")
    assert stack.jobs.cancel(job_id) is JobState.CANCELLING
    view = stack.ended(job_id, within_s=30)
    assert view.status is JobState.CANCELLED
    assert [run.status for run in view.stages] == [StageRunState.CANCELLED] * 2
    first, second = view.stages
    assert None not in (first.load_s, first.run_s)
    assert (first.store_s, second.load_s) == (None, None)
    lives(stack)


def test_a_stage_run_over_its_time_limit_fails_its_job(stack: EchoStack) -> None:
    view = stack.ended(stack.submit(second={"delay_s": 30}))
    assert view.status is JobState.FAILED
    assert view.error is not None
    assert (view.error.code, view.error.stage) == ("time_limit", "second")
    [error] = view.stages[1].errors
    assert error.run_s is not None
    assert error.run_s + (error.load_s or 0) >= 2.0 - EARLY_S
    assert error.store_s is None
    assert (view.stages[1].load_s, view.stages[1].run_s) == (error.load_s, error.run_s)
    lives(stack)


def test_a_payload_over_its_limit_fails_its_job(stack: EchoStack) -> None:
    view = stack.ended(stack.submit(first={"payload_bytes": 1_000_001}))
    assert view.status is JobState.FAILED
    assert view.error is not None
    assert (view.error.code, view.error.stage) == ("payload_too_large", "first")
    assert view.error.key == f"{job_prefix(view.id)}payloads/first/1"
    lives(stack)


def test_a_parameter_the_stage_does_not_know_fails_its_job(stack: EchoStack) -> None:
    view = stack.ended(stack.submit(first={"temperature": 1}))
    assert view.status is JobState.FAILED
    assert view.error is not None
    assert (view.error.field, view.error.stage) == ("stages.first.temperature", "first")
    lives(stack)


def _message(**changes: Any) -> bytes:
    body = base64.b64encode(json.dumps([[], {}, {}]).encode()).decode()
    return json.dumps(
        {
            "body": body,
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "headers": {"task": TASK, "id": "x"},
            "properties": {"delivery_tag": "t", "delivery_info": {}, "body_encoding": "base64"},
            **changes,
        }
    ).encode()


NO_DOORBELLS = {
    "not json": b"\x80\x04not json",
    "empty": b"",
    "nested": b"[" * 50_000,
    "a list": b"[1, 2]",
    "no properties": json.dumps({"body": "", "headers": {}}).encode(),
    "bad base64": _message(body="%%%"),
    "body of another type": _message(body=[1]),
    "pickle": _message(**{"content-type": "application/x-python-serialize"}),
    "yaml": _message(**{"content-type": "application/x-yaml"}),
    "another task": _message(headers={"task": "celery.chord_unlock", "id": "x"}),
    "no task": _message(headers={}),
    "headers of another type": _message(headers=7),
    "compressed": _message(headers={"task": TASK, "compression": "zlib"}),
    "no delivery tag": _message(properties={"body_encoding": "base64"}),
    "huge": b"x" * 300_000,
    "a hint of an older build": _message(body=base64.b64encode(b"[[[[1, 0]]], {}, {}]").decode()),
    "a body": _message(body=base64.b64encode(b'[["stage run 1"], {}, {}]').decode()),
}


def test_messages_that_are_no_doorbells_are_dropped_and_the_worker_lives(stack: EchoStack) -> None:
    dropped = "echo@1.first held another message than a doorbell: dropped"
    log = stack.workers[0].log
    before = log.read_text().count(dropped)
    with stack.redis() as client:
        for message in NO_DOORBELLS.values():
            client.lpush(f"{stack.prefix}echo@1.first", message)
        stack.app.send_task("reports.tasks.send", (1,), {"to": "all"}, queue="echo.first")  # of another project
        # A doorbell rung before would trim the queue, and with it messages that the worker has not seen.
        stack.until(lambda: log.read_text().count(dropped) == before + len(NO_DOORBELLS) + 1 or None, 60)
        assert client.keys(f"{stack.prefix}echo*") == [], "nothing of them is kept"
    lives(stack)


def test_headers_that_mean_something_to_celery_mean_nothing(stack: EchoStack) -> None:
    with stack.redis() as client:
        times = ({"timelimit": "soon"}, {"eta": "2099-01-01T00:00:00"}, {"expires": "2000-01-01"}, {"retries": "x"})
        for headers in times:
            client.lpush(f"{stack.prefix}echo@1.first", _message(headers={"task": TASK, "id": "x", **headers}))
    lives(stack)


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="a policy of Linux")
def test_no_thread_of_a_worker_takes_a_core_from_a_model_by_waking_up(stack: EchoStack) -> None:
    for worker in stack.workers:
        threads = [int(entry.name) for entry in Path(f"/proc/{worker.process.pid}/task").iterdir()]
        assert {os.sched_getscheduler(thread) for thread in threads} == {os.SCHED_BATCH}


def inspect(stack: EchoStack) -> Inspect:
    """Celery's ``inspect``, which returns once all workers of the stack have answered: they are named."""
    return stack.app.control.inspect(destination=[worker.slot for worker in stack.workers], timeout=30.0)


def test_celery_inspect_shows_the_pool(stack: EchoStack) -> None:
    stats = inspect(stack).stats()
    assert stats is not None
    pools = [stats[worker.slot]["pool"] for worker in stack.workers]
    assert [pool["slots"] for pool in pools] == [8, 8]


def test_celery_inspect_lists_the_stage_runs_in_flight(stack: EchoStack) -> None:
    asked = inspect(stack)
    first = stack.workers[0].slot
    done = (asked.stats() or {})[first]["total"].get(TASK, 0)
    job_id = stack.submit("seen", first={"delay_s": 60})
    view = stack.running(job_id, "first")
    [run] = (asked.active() or {})[first]
    assert (run["name"], run["hostname"], run["worker_pid"]) == (TASK, first, stack.workers[0].process.pid)
    told = run["kwargs"]
    assert (told["job_id"], told["pipeline"], told["stage"], told["attempt"]) == (job_id, "echo", "first", 1)
    assert view.stages[0].started_at is not None
    assert abs(run["time_start"] - view.stages[0].started_at.timestamp()) < 60
    assert (asked.query_task(run["id"], "0") or {})[first] == {run["id"]: ["active", run]}
    stack.jobs.cancel(job_id)
    stack.ended(job_id)
    stack.until(lambda: (asked.active() or {}).get(first) == [] or None, 60)
    assert (asked.stats() or {})[first]["total"] == {TASK: done + 1}
    lives(stack)
    assert (asked.stats() or {})[first]["total"] == {TASK: done + 2}


def test_malformed_broadcasts_are_dropped(stack: EchoStack) -> None:
    with stack.redis() as client:
        channels = {name.decode() for name in client.pubsub_channels("*")} | {f"{stack.prefix}/0.celery.pidbox"}
        for channel in channels:
            for bad in (b"\x80", b"{}", b"[]", b'{"properties": {}}', _message(body="%%%"), _message(headers=7)):
                client.publish(channel, bad)
    lives(stack)


def test_queue_depths_are_empty_when_all_is_done(stack: EchoStack) -> None:
    lives(stack)
    # A poll may have found the job before its doorbell was popped.
    stack.until(lambda: not any(stack.app.broker.depths().values()) or None, 60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
@pytest.mark.parametrize(
    ("fault", "is_migrated", "said"),
    [(None, False, "waiting: "), ("load", True, "the slot is taken")],
    ids=["waits for the database", "loads"],
)
def test_a_worker_that_starts_ends_soon_when_it_is_asked_to(
    fault: str | None,
    is_migrated: bool,
    said: str,
    number: signal.Signals,
    sqlite_url: str,
    valkey_server: str,
    tmp_path: Path,
) -> None:
    url = sqlite_url if is_migrated else f"sqlite:///{tmp_path / 'jobs.sqlite'}"
    stack = EchoStack(tmp_path, url, valkey_server)
    try:
        worker = stack.launch("first", fault=fault)
        stack.until(lambda: said in worker.log.read_text() or None, 60)
        assert worker.stop(number, within_s=60) == 0, worker.log.read_text()
        assert "something hangs" not in worker.log.read_text()
    finally:
        stack.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-Q", "echo.first,echo.second"], "give one queue"),
        ([], "give one queue"),
        (["-Q", "echo.third"], "no stage has the queue 'echo.third'"),
    ],
    ids=["two queues", "no queue", "an unknown queue"],
)
def test_a_wrong_queue_is_refused_at_start(
    arguments: list[str], message: str, tmp_path: Path, valkey_server: str
) -> None:
    stack = EchoStack(tmp_path, f"sqlite:///{tmp_path / 'jobs.sqlite'}", valkey_server)
    command, environment = stack.command(*arguments, "-n", "wrong@test")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    stack.close()
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr
