"""What a killed worker left running in its slot is ended by its successor; nobody else's is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from omni_jobs.database.database import Database
from tests.integration.echo_stack import EchoStack
from workers.leftovers import MARK, end_leftovers, slot_mark

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def sleeper(mark: str) -> subprocess.Popen[bytes]:
    """Stands where an engine process would be: it carries the mark of the slot that started it."""
    code = "print(flush=True); import time; time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, MARK: mark}, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()  # its environment is its own now
    return process


def test_a_worker_ends_what_is_left_in_its_slot_and_nothing_else(valkey_url: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.sqlite'}"
    database = Database(url)
    database.migrate()
    database.close()
    stack = EchoStack(tmp_path, url, valkey_url)
    left = sleeper(slot_mark(url, "first@test"))
    others = [sleeper(slot_mark(url, "first@elsewhere")), sleeper(slot_mark("sqlite:////other", "first@test"))]
    try:
        worker = stack.launch("first", "first@test")
        stack.serving(worker)
        assert left.wait(5) == -9
        assert [process.poll() for process in others] == [None, None]
        assert f"process {left.pid} is left" in worker.log.read_text()
    finally:
        for process in (left, *others):
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        stack.close()


def test_where_nothing_is_left_nothing_is_ended() -> None:
    assert end_leftovers(slot_mark("sqlite:////nobody", "slot")) == []
    assert "nobody" not in slot_mark("sqlite:////nobody", "slot")
