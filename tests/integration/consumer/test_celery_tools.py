"""Celery's own command line and Flower tell the truth of a real worker, and what they ask of it is done or refused."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from celery.worker.control import Panel

from omni_jobs.broker.doorbell import TASK
from omni_jobs.database.database import Database
from omni_jobs.states import JobState, StageRunState
from tests.integration.echo_stack import EchoStack, EchoWorker

PROMPT = "a secret that no monitor may show"


@pytest.fixture(scope="module")
def stack(valkey_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EchoStack]:
    """A worker of each stage, for all tests of this module."""
    with echo(tmp_path_factory.mktemp("echo"), valkey_server) as stack, left_events(stack):
        start(stack, "first", "second")
        yield stack


LEFT = {"celeryev.killed": 5_001, "celeryev.slow": 4_900}
"""How many messages wait for monitors that take none, before the workers start."""


@contextmanager
def left_events(stack: EchoStack) -> Iterator[None]:
    """Queues of monitors that take nothing. Celery would delete them with the monitors' connection."""
    with stack.app.connection_for_write() as connection:
        channel = connection.default_channel
        for name, messages in LEFT.items():
            stack.app.events.Receiver(channel, node_id=name.removeprefix("celeryev.")).queue(channel).declare()
            stack.redis().lpush(prefixed(stack, name), *["{}"] * messages)
        yield


def prefixed(stack: EchoStack, key: str) -> str:
    return f"{stack.app.conf.broker_transport_options.get('global_keyprefix', '')}{key}"


@contextmanager
def echo(directory: Path, broker_url: str, **options: str) -> Iterator[EchoStack]:
    url = f"sqlite:///{directory / 'jobs.sqlite'}"
    database = Database(url)
    database.migrate()
    database.close()
    stack = EchoStack(
        directory, url, broker_url, {f"OMNI_JOBS_{name.upper()}": value for name, value in options.items()}
    )
    try:
        yield stack
    finally:
        stack.close()


def start(stack: EchoStack, *stages: str) -> list[EchoWorker]:
    """Start workers, and wait until they hear remote control."""
    started = stack.start(*stages)
    for worker in started:
        stack.until(lambda: stack.app.control.ping([worker.slot], timeout=1.0) or None, 30)  # noqa: B023
    return started


def celery(stack: EchoStack, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "celery", "-A", "workers.app", *arguments]
    environment = {**os.environ, **stack.variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def ask(stack: EchoStack, worker: EchoWorker, command: str, **arguments: Any) -> Any:
    [answer] = stack.app.control.broadcast(command, arguments, reply=True, timeout=30.0, destination=[worker.slot])
    return answer[worker.slot]


class Monitor:
    """Hears Celery's events, as ``celery events`` does, on a thread."""

    def __init__(self, stack: EchoStack) -> None:
        self.heard: list[dict[str, Any]] = []
        self._connection = stack.app.connection_for_read()
        self._receiver = stack.app.events.Receiver(self._connection, handlers={"*": self.heard.append})
        self._hears = threading.Event()
        self._receiver.on_consume_ready = lambda *_, **__: self._hears.set()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def _listen(self) -> None:
        self._receiver.capture(limit=None, timeout=None, wakeup=False)

    def __enter__(self) -> "Monitor":
        self._thread.start()
        assert self._hears.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._receiver.should_stop = True
        self._thread.join(10)
        self._connection.release()

    def of_job(self, job_id: str, stage: str = "first") -> list[dict[str, Any]]:
        """The events of a job's stage run, in their order; at first one without a type."""
        names = (f"'job_id': '{job_id}'", f"'stage': '{stage}'")
        uuids = [each["uuid"] for each in self.heard if all(name in each.get("kwargs", "") for name in names)]
        return [event for event in self.heard if event.get("uuid") in uuids] or [{"type": None}]


DONE: dict[str, tuple[dict[str, Any], str]] = {
    "report": ({}, "software -> celery"),
    "conf": ({}, "redis://:********@"),
    "query_task": ({"ids": ["4711"]}, "{}"),
    "clock": ({}, "clock"),
    "enable_events": ({}, "task events enabled"),
    "disable_events": ({}, "task events disabled"),
    "heartbeat": ({}, "heartbeat sent"),
    "hello": ({"from_node": "other@test"}, "clock"),
    "ping": ({}, "pong"),
    "stats": ({}, "workers.consumer.pool:StagePool"),
    "scheduled": ({}, "[]"),
    "reserved": ({}, "[]"),
    "active": ({}, "[]"),
    "revoked": ({}, "[]"),
    "registered": ({}, TASK),
    "objgraph": ({}, "Requires the objgraph library"),
    "memsample": ({}, "MB"),
    "memdump": ({}, "rss"),
    "active_queues": ({}, "echo.first"),
}
"""What Celery's commands answer that are carried out, or say what they lack."""
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "revoke": ({"task_id": ["4711"]}, "omni-jobs cancel"),
    "revoke_by_stamped_headers": ({"headers": {"a": "b"}}, "omni-jobs cancel"),
    "terminate": ({"signal": "KILL", "task_id": ["4711"]}, "omni-jobs cancel"),
    "rate_limit": ({"task_name": TASK, "rate_limit": "1/m"}, "slots"),
    "time_limit": ({"task_name": TASK, "soft": 1, "hard": 1}, "time_limit_s"),
    "election": ({"id": "1", "topic": "leader"}, "in SQL"),
    "pool_grow": ({"n": 1}, "slots"),
    "pool_shrink": ({"n": 1}, "slots"),
    "pool_restart": ({}, "slots"),
    "autoscale": ({"max": 9, "min": 1}, "slots"),
    "add_consumer": ({"queue": "other"}, "omni-jobs stages pause"),
    "cancel_consumer": ({"queue": "echo.first"}, "omni-jobs stages pause"),
}
"""What Celery's commands say that are refused."""


def test_every_command_of_remote_control_is_done_or_refused_with_a_sentence(stack: EchoStack) -> None:
    assert {*DONE, *REFUSED, "shutdown"} == Panel.meta.keys(), "decide what becomes of a new command"
    first = stack.workers[0]
    for name, (arguments, said) in DONE.items():
        assert said in str(ask(stack, first, name, **arguments)), name
    for name, (arguments, said) in REFUSED.items():
        answer = ask(stack, first, name, **arguments)
        assert answer.keys() == {"error"}, name
        assert said in answer["error"], name
    assert ask(stack, first, "stats")["pool"]["slots"] == 8
    assert stack.ended(stack.submit()).status is JobState.COMPLETED


def test_events_that_wait_for_a_monitor_that_was_killed_are_dropped(stack: EchoStack) -> None:
    killed, slow = (stack.redis().llen(prefixed(stack, name)) for name in LEFT)
    assert killed < 5_000
    assert slow >= LEFT["celeryev.slow"]


def test_celerys_command_line_shows_the_workers_and_refuses_for_them(stack: EchoStack) -> None:
    status = celery(stack, "status", "--json", "-t", "10", "-d", ",".join(worker.slot for worker in stack.workers))
    assert json.loads(status.stdout.splitlines()[0]) == {worker.slot: {"ok": "pong"} for worker in stack.workers}
    job_id = stack.submit(PROMPT, first={"delay_s": 60})
    stack.running(job_id, "first")
    active = celery(stack, "inspect", "active", "--json", "-t", "10", "-d", stack.workers[0].slot)
    assert [run["kwargs"]["job_id"] for run in json.loads(active.stdout)[stack.workers[0].slot]] == [job_id]
    assert PROMPT not in active.stdout
    stack.jobs.cancel(job_id)
    stack.ended(job_id)
    refused = celery(stack, "control", "-t", "10", "-d", stack.workers[0].slot, "pool_grow", "2")
    assert "a worker runs as many stage runs at once as its slots" in refused.stdout


def test_events_show_each_stage_run_as_a_task_and_no_word_of_its_prompt(stack: EchoStack) -> None:
    first = stack.workers[0]
    with Monitor(stack) as monitor:
        ask(stack, first, "enable_events")
        done = stack.submit(PROMPT)
        failed = stack.submit(PROMPT, first={"temperature": 1})
        cancelled = stack.submit(PROMPT, first={"delay_s": 60})
        stack.running(cancelled, "first")
        stack.jobs.cancel(cancelled)
        for job_id, last in ((done, "succeeded"), (failed, "failed"), (cancelled, "revoked")):
            stack.ended(job_id)
            stack.until(lambda: monitor.of_job(job_id)[-1]["type"] == f"task-{last}" or None, 60)  # noqa: B023
        assert [event["type"] for event in monitor.of_job(done)] == ["task-received", "task-started", "task-succeeded"]
        assert all(event["hostname"] == first.slot for event in monitor.of_job(done))
        assert monitor.of_job(failed)[-1]["exception"] == "invalid_request"
        ask(stack, first, "heartbeat")
        ended = ask(stack, first, "stats")["total"][TASK]
        beat = stack.until(
            lambda: next((event for event in monitor.heard if event.get("processed") == ended), None), 20
        )
        assert (beat["type"], beat["active"]) == ("worker-heartbeat", 0)
        assert PROMPT not in repr(monitor.heard)
    ask(stack, first, "disable_events")


def test_flower_shows_the_workers_and_their_stage_runs(stack: EchoStack) -> None:
    socket = stack.directory / "flower.sock"
    command = [sys.executable, "-m", "celery", "-A", "workers.app", "flower", f"--unix-socket={socket}"]
    environment = {**os.environ, **stack.variables, "FLOWER_UNAUTHENTICATED_API": "true"}
    with (
        (stack.directory / "flower.log").open("wb") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as flower,
        httpx2.Client(transport=httpx2.HTTPTransport(uds=str(socket)), base_url="http://flower", timeout=30) as client,
    ):
        try:

            def get(path: str) -> Any:
                assert flower.poll() is None, (stack.directory / "flower.log").read_text()
                try:
                    return client.get(path).json()
                except (httpx2.TransportError, ValueError):
                    return None

            stack.until(lambda: socket.exists() or flower.poll() is not None or None, 60)
            slots = {worker.slot for worker in stack.workers}
            stack.until(lambda: set(get("/api/workers?status=1") or ()) == slots or None, 60)
            for worker in stack.workers:
                stack.until(lambda: were_enabled(stack, worker) or None, 60)  # noqa: B023
            job_id = stack.submit(PROMPT)
            stack.ended(job_id)

            def states() -> set[tuple[str, str]] | None:
                tasks = [task for task in (get("/api/tasks") or {}).values() if job_id in task["kwargs"]]
                assert PROMPT not in repr(tasks)
                found = {(task["worker"], task["state"]) for task in tasks}
                return found if len(found) == 2 and all(state == "SUCCESS" for _, state in found) else None

            assert stack.until(states, 30) == {(slot, "SUCCESS") for slot in slots}
        finally:
            flower.terminate()


def were_enabled(stack: EchoStack, worker: EchoWorker) -> bool:
    """Whether somebody has enabled a worker's task events, which this leaves as they were."""
    were = bool(ask(stack, worker, "disable_events")["ok"] == "task events disabled")
    if were:
        ask(stack, worker, "enable_events")
    return were


def test_shutdown_by_remote_control_lets_what_runs_finish_and_says_so(stack: EchoStack) -> None:
    second = stack.workers[1]
    with Monitor(stack) as monitor:
        ask(stack, second, "enable_events")
        job_id = stack.submit(second={"delay_s": 1.5})
        stack.running(job_id, "second")
        stack.app.control.shutdown(destination=[second.slot])
        assert second.process.wait(60) == 0
        stack.until(lambda: any(event["type"] == "worker-offline" for event in monitor.heard) or None, 60)
        stack.until(lambda: monitor.of_job(job_id, "second")[-1]["type"] == "task-succeeded" or None, 60)
    assert stack.ended(job_id).status is JobState.COMPLETED


def test_a_setting_takes_the_events_of_stage_runs_away(valkey_server: str, tmp_path: Path) -> None:
    with echo(tmp_path, valkey_server, task_events="off") as stack, Monitor(stack) as monitor:
        [worker] = start(stack, "first")
        assert "OMNI_JOBS_TASK_EVENTS" in ask(stack, worker, "enable_events")["error"]
        job_id = stack.submit()
        stack.until(lambda: stack.jobs.get(job_id).stages[0].status is StageRunState.SUCCEEDED or None, 60)
        ask(stack, worker, "heartbeat")
        stack.until(lambda: any(event.get("processed") == 1 for event in monitor.heard) or None, 60)
        assert {event["type"].partition("-")[0] for event in monitor.heard} == {"worker"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "-P: stage runs need their own pool"),
        (["-P", "custom", "--autoscale", "9,1"], "--autoscale: has no effect here"),
    ],
    ids=["no pool", "autoscale"],
)
def test_a_worker_of_another_pool_says_so_in_one_line(
    arguments: list[str], said: str, tmp_path: Path, valkey_server: str
) -> None:
    with echo(tmp_path, valkey_server) as stack:
        command, environment = stack.command("-Q", "echo.first", "-n", "wrong@test")
        command[command.index("-P") : command.index("-P") + 2] = arguments
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(f"celery worker: {said}")
