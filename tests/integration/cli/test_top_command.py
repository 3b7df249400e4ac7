"""``omni-jobs top`` against a real API server."""

import json
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner, Result

from omni_jobs.cli import Exit, app
from omni_jobs.jobs import NewWorker
from omni_jobs.settings import Settings
from omni_jobs.views import Status
from tests.integration.api_server import ApiServer
from tests.services.fault_proxy import Fault, FaultProxy

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings.model_copy(update={"pipelines": ("echo",)})


def run(api: ApiServer, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["top", *arguments, "--url", f"http://{api.host}:{api.port}"])


def submit(api: ApiServer) -> str:
    return str(api.http.post("/v1/jobs", json=ECHO).json()["id"])


def test_a_pipe_gets_one_screen_of_stages_workers_and_jobs(api: ApiServer) -> None:
    echo = api.services.pipelines["echo"]
    api.services.jobs.register_worker(NewWorker("w", "slot@h", echo.stage_id("first"), "h", 1, 4, echo.version), 60.0)
    job_id = submit(api)
    found = run(api)
    assert found.exit_code == 0
    lines = [line.split() for line in found.stdout.splitlines()]
    assert ["echo.first", "1", "0", "0/4", "1", "waiting"] in lines
    assert [line[:2] for line in lines if line[:1] == ["slot@h"]] == [["slot@h", "0/4"]]
    assert [line[:4] for line in lines if line[:1] == [job_id]] == [[job_id, "echo", "queued", "first"]]
    alone = run(api, "jobs", "--once").stdout
    assert job_id in alone
    assert "slot@h" not in alone


def test_json_is_the_answer_of_the_server(api: ApiServer) -> None:
    job_id = submit(api)
    found = run(api, "--once", "--json")
    assert found.stdout.count("\n") == 1
    assert [job.id for job in Status.model_validate(json.loads(found.stdout)).recent] == [job_id]


def test_wrong_usage_and_a_server_that_is_not_there_end_it(api: ApiServer) -> None:
    assert run(api, "everything").exit_code == 2
    assert run(api, "--every", "0").exit_code == 2
    gone = CliRunner().invoke(app, ["top", "--once", "--url", "http://127.0.0.1:1"])
    assert gone.exit_code == Exit.UNREACHABLE


def test_a_terminal_keeps_what_was_said_last_while_the_server_is_away(api: ApiServer) -> None:
    with FaultProxy(f"http://{api.host}:{api.port}", http=True) as proxy, terminal(proxy.url) as (process, screen):
        until(screen, lambda got: "echo.first" in got)
        proxy.set(Fault(refuse=True))
        until(screen, lambda got: "echo.first" in got.partition("OLD: no answer")[2])
        proxy.clear()
        job_id = submit(api)
        until(screen, lambda got: job_id in got)
        process.terminate()
        until(screen, lambda got: "interrupted" in got.partition(LEFT)[2])
        assert process.wait(60) == Exit.INTERRUPTED


def test_a_terminal_says_that_the_server_hangs_and_is_left_by_q_all_the_same(api: ApiServer) -> None:
    with FaultProxy(f"http://{api.host}:{api.port}", http=True) as proxy, terminal(proxy.url) as (process, screen):
        until(screen, lambda got: "echo.first" in got)
        before = termios.tcgetattr(screen)
        proxy.set(Fault(hang=True))
        until(screen, lambda got: "OLD: no answer for" in got)
        assert not before[3] & termios.ECHO
        os.write(screen, b"q")
        until(screen, lambda got: LEFT in got)
        assert process.wait(60) == 0
        assert termios.tcgetattr(screen)[3] & termios.ECHO


def test_a_key_that_is_refused_meanwhile_ends_it(api: ApiServer) -> None:
    with FaultProxy(f"http://{api.host}:{api.port}", http=True) as proxy, terminal(proxy.url) as (process, screen):
        until(screen, lambda got: "echo.first" in got)
        proxy.set(Fault(status=403))
        until(screen, lambda got: "omni-jobs: " in got.partition(LEFT)[2])
        assert process.wait(60) == Exit.FAILED


LEFT = "\x1b[?1049l"
"""What brings back what the terminal showed before."""


@contextmanager
def terminal(url: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run the command on a terminal. Yield its process, and the descriptor of what the terminal gets and is typed."""
    screen, its_end = pty.openpty()
    command = [sys.executable, "-m", "omni_jobs.cli", "top", "--every", "0.2", "--url", url]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen(command, env=environment, stdin=its_end, stdout=its_end, stderr=its_end) as process:
        try:
            yield process, screen
        finally:
            process.kill()
            os.close(its_end)
            os.close(screen)


def until(screen: int, is_there: Callable[[str], bool]) -> None:
    """Read what a terminal gets until it holds what is waited for."""
    got = b""
    while not is_there(got.decode(errors="replace")):
        piece = os.read(screen, 65_536)
        assert piece, got
        got += piece
