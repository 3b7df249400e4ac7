"""``omni-jobs up``: it serves, ends with what it started, and outlives what hangs."""

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image

from omni_jobs.client import Client
from omni_jobs.stack.data_directory import running_stack
from omni_jobs.stack.sentinel import processes_of
from omni_jobs.states import JobState
from tests.integration.stack.stack_steps import OMNI_JOBS, children_of, echo, sessions_of, until
from tests.processes import command_line

pytestmark = pytest.mark.timeout(300)


@contextmanager
def up(data_dir: Path, *options: str, stderr: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*OMNI_JOBS, "up", *(options or ("--pipeline", "echo")), "--data-dir", str(data_dir), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        until(lambda: running_stack(data_dir) is None)


def test_up_serves_until_sigterm_and_leaves_nothing(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)  # as ``mkdir`` makes it
    with up(tmp_path) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "omni-jobs is up at http://127.0.0.1:" in line
        with Client(re.findall(r"http://\S+", line)[0]) as client:
            job = client.wait(client.submit(echo("hi", payload_bytes=100_000)).id, timeout=60)
            assert job.status is JobState.COMPLETED
        open_to_others = [path for path in (tmp_path, *tmp_path.rglob("*")) if path.lstat().st_mode & 0o077]
        assert open_to_others == []
        sessions = children_of(process.pid)
        assert len(sessions) == 6  # five children and the sentinel
        process.terminate()
        assert process.wait(60) == 0
        assert processes_of(sessions) == []
        assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("stack")) == ["stack.lock"]


def test_up_goes_on_where_its_notices_cannot_be_written_and_after_signals_without_names(tmp_path: Path) -> None:
    with up(tmp_path, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = re.findall(r"http://\S+", process.stdout.readline())[0]
        process.stderr.close()
        before = children_of(process.pid)
        (rescuer,) = [pid for pid in before if "omni_jobs.cli rescuer" in command_line(pid)]
        os.kill(rescuer, signal.SIGRTMIN + 6)
        until(lambda: any("omni_jobs.cli rescuer" in command_line(pid) for pid in children_of(process.pid) - before))
        with Client(url) as client:
            assert client.wait(client.submit(echo("hi")).id, timeout=60).status is JobState.COMPLETED
        process.terminate()
        process.wait(60)
        assert children_of(process.pid) == set()


def has_ipv6() -> bool:
    """Containers often have none."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_up_builds_a_tiny_checkpoint_and_serves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = tmp_path / "small.png"
    Image.new("RGB", (40, 30), "red").save(picture)
    host = "[::1]" if has_ipv6() else "127.0.0.1"
    monkeypatch.setenv("OMNI_JOBS_API_HOST", host)
    with up(tmp_path / "data", "--tiny", "upscale") as process:
        assert process.stdout is not None
        assert "random weights" in process.stdout.readline()
        url = re.findall(r"http://\S+", process.stdout.readline())[0]
        assert url.startswith(f"http://{host}:")
        done = subprocess.run(
            [*OMNI_JOBS, "submit", "--image", str(picture), "--url", url, "--out", str(tmp_path / "out")],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        with Image.open(tmp_path / "out" / "image.png") as enlarged:
            assert enlarged.size == (160, 120)


def test_what_hangs_is_killed_and_started_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_JOBS_STALL_AFTER_S", "5")
    words = ("valkey-server", "omni_jobs.cli api", "omni_jobs.cli rescuer", "-Q echo@1.first", "sentinel.py")
    with up(tmp_path) as process:
        assert process.stdout is not None
        url = re.findall(r"http://\S+", process.stdout.readline())[0]
        before = children_of(process.pid)
        hung = [pid for pid in before if any(word in command_line(pid) for word in words)]
        assert len(hung) == len(words)
        for pid in hung:
            os.kill(pid, signal.SIGKILL if "sentinel.py" in command_line(pid) else signal.SIGSTOP)
        until(lambda: len(children_of(process.pid) - before) == len(words), 120)
        with Client(url) as client:
            assert client.wait(client.submit(echo("hi")).id, timeout=60).status is JobState.COMPLETED
        process.terminate()
        assert process.wait(60) == 0
        assert children_of(process.pid) == set()


def test_nothing_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    with up(tmp_path) as process:
        assert process.stdout is not None
        assert "omni-jobs is up" in process.stdout.readline()
        sessions = children_of(process.pid)
        assert len(sessions) == 6
        process.kill()
        until(lambda: processes_of(sessions) == [], 30)
        assert running_stack(tmp_path) is None


def test_ctrl_c_during_the_start_leaves_nothing(tmp_path: Path) -> None:
    with up(tmp_path) as process:
        until(lambda: (tmp_path / "logs" / "worker-echo.second.log").exists() or process.poll() is not None)
        sessions = children_of(process.pid)
        assert len(sessions) == 6
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert processes_of(sessions) == []


def test_a_second_ctrl_c_kills_what_does_not_stop(tmp_path: Path) -> None:
    with up(tmp_path) as process:
        assert process.stdout is not None
        assert "omni-jobs is up" in process.stdout.readline()
        sessions = children_of(process.pid)
        hung, *_ = (pid for pid in sessions if b"rescuer" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))
        os.kill(hung, signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        until(lambda: len(sessions_of(processes_of(sessions))) == 3)  # it, Valkey and the sentinel
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert processes_of(sessions) == []
