"""Whether a process lives: known either way, or said to be unknown."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from workers.execution import incarnation

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def _ended() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_a_process_that_runs_has_a_start_and_one_that_ended_has_none() -> None:
    assert incarnation.started(os.getpid()) == incarnation.own_start() is not None
    assert incarnation.started(_ended()) is None


def test_a_process_is_known_by_its_start_and_its_space() -> None:
    pid, space, start = os.getpid(), incarnation.pid_space(), incarnation.own_start()
    assert start is not None
    assert incarnation.state(pid, space, start) == "runs"
    assert incarnation.state(pid, space, start - 1) == "gone"
    assert incarnation.state(_ended(), space, start) == "gone"
    assert incarnation.state(pid, "another boot/1", start) is None
    assert incarnation.state(pid, None, start) is None
    assert incarnation.state(pid, space, None) is None


def test_where_no_file_can_be_opened_nothing_is_known() -> None:
    space, start = incarnation.pid_space(), incarnation.own_start()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            incarnation.started(os.getpid())
        assert incarnation.own_start() is None
        assert incarnation.state(os.getpid(), space, start) is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_process_that_proc_hides_is_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = _ended()
    monkeypatch.setattr(incarnation, "_PROC", tmp_path)  # as with hidepid=2, for processes of other users
    with pytest.raises(FileNotFoundError):
        incarnation.started(os.getpid())
    assert incarnation.own_start() is None
    assert incarnation.started(ended) is None
