import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_jobs.stack import sentinel

# Ignores SIGTERM, starts a child that outlives its parent, says both process ids.
STUBBORN = """
import os, signal, subprocess, sys, time
sleeper = "import time; print(flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", sleeper], stdout=subprocess.PIPE)
child.stdout.readline()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), child.pid, flush=True)
if "--leave" not in sys.argv:
    time.sleep(600)
"""


@pytest.fixture
def session() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        sentinel.end_sessions({process.pid}, grace_s=0)
        process.communicate()


def pids_said_by(process: subprocess.Popen[str]) -> set[int]:
    assert process.stdout is not None
    return {int(word) for word in process.stdout.readline().split()}


def test_a_session_is_its_leader_and_all_that_came_from_it(session: subprocess.Popen[str]) -> None:
    said = pids_said_by(session)
    assert len(said) == 2
    assert set(sentinel.processes_of({session.pid})) == said
    assert sentinel.processes_of(set()) == []


def test_what_ignores_sigterm_is_killed_after_the_grace(session: subprocess.Popen[str]) -> None:
    pids_said_by(session)
    assert sentinel.end_sessions({session.pid}, grace_s=0.2) == []
    assert session.wait(30) == -9


def test_grandchildren_of_a_dead_leader_are_found() -> None:
    leader = subprocess.Popen(
        [sys.executable, "-c", STUBBORN, "--leave"], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    said = pids_said_by(leader)
    leader.wait(10)
    assert set(sentinel.processes_of({leader.pid})) == said - {leader.pid}
    assert sentinel.end_sessions({leader.pid}, grace_s=0) == []
    leader.communicate()


def start_sentinel(*remove: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-I", "-S", sentinel.__file__, *remove], stdin=subprocess.PIPE, text=True)


def test_the_sentinel_ends_the_sessions_when_its_supervisor_is_gone(
    session: subprocess.Popen[str], tmp_path: Path
) -> None:
    pids_said_by(session)
    spool = tmp_path / "spool"
    (spool / "deep").mkdir(parents=True)
    watcher = start_sentinel(spool)
    # A grace of ten seconds is too long for a test: this session is asked and obeys.
    os.kill(session.pid, 9)
    watcher.communicate(f"session {session.pid}\n", timeout=20)
    assert watcher.returncode == 0
    assert sentinel.processes_of({session.pid}) == []
    assert not spool.exists()


@pytest.mark.parametrize("end", ["done\n", "forget {pid}\n"])
def test_the_sentinel_leaves_alone_what_was_stopped_in_order(session: subprocess.Popen[str], end: str) -> None:
    pids_said_by(session)
    watcher = start_sentinel()
    watcher.communicate(f"session {session.pid}\n" + end.format(pid=session.pid), timeout=20)
    assert watcher.returncode == 0
    assert session.poll() is None


def test_the_shared_memory_of_the_killed_is_removed() -> None:
    code = """
import time
from multiprocessing.shared_memory import SharedMemory
memory = SharedMemory(create=True, size=4096)
print(memory.name, flush=True)
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    segment = Path("/dev/shm", process.stdout.readline().strip())
    assert segment.exists()
    while not any(map(sentinel.is_resource_tracker, sentinel.processes_of({process.pid}))):
        time.sleep(0.01)  # it is forked, and not yet itself
    assert sentinel.end_sessions({process.pid}, grace_s=0) == []
    process.communicate()
    assert not segment.exists()


def test_a_stopped_process_is_seen(session: subprocess.Popen[str]) -> None:
    pids_said_by(session)
    assert not sentinel.is_stopped(session.pid)
    os.kill(session.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, session.pid, os.WSTOPPED)
    assert sentinel.is_stopped(session.pid)
    session.kill()
    session.wait()
    assert not sentinel.is_stopped(session.pid)


def test_a_killed_sentinel_is_followed_by_one_that_knows_all_sessions(session: subprocess.Popen[str]) -> None:
    pids_said_by(session)
    watcher = sentinel.Sentinel(lock_fd=None, remove=[])
    watcher.watch(1 << 22)  # no process has this id
    watcher.forget(1 << 22)
    watcher.watch(session.pid)
    assert not watcher.renew()
    watcher._process.kill()
    watcher._process.wait()
    assert watcher.renew()
    os.kill(session.pid, 9)
    assert watcher._process.stdin is not None
    watcher._process.stdin.close()  # as when the supervisor is killed
    watcher._process.wait(20)
    assert sentinel.processes_of({session.pid}) == []


def test_a_stack_stops_beside_a_sentinel_that_somebody_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentinel, "STOP_S", 0.1)
    watcher = sentinel.Sentinel(lock_fd=None, remove=[])
    os.kill(watcher._process.pid, signal.SIGSTOP)
    watcher.stop()
    assert watcher._process.returncode == -signal.SIGKILL


def test_a_stack_stops_without_its_sentinel(tmp_path: Path) -> None:
    watcher = sentinel.Sentinel(lock_fd=None, remove=[tmp_path])
    watcher._process.kill()
    watcher._process.wait()
    watcher.watch(1)
    watcher.stop()
    assert tmp_path.exists()
