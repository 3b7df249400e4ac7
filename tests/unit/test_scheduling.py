import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="a policy of Linux")

_POLICIES = """
import os, subprocess, sys, threading
from omni_jobs.scheduling import give_way

if len(sys.argv) > 1:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
print(give_way())
thread = threading.Thread(target=lambda: print(os.sched_getscheduler(0)))
thread.start()
thread.join()
subprocess.run([sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"], check=True)
"""


def _policies(*arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-u", "-c", _POLICIES, *arguments],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.split()


def test_threads_and_processes_give_way_as_who_started_them() -> None:
    assert _policies() == ["True", str(os.SCHED_BATCH), str(os.SCHED_BATCH)]


def test_the_operators_choice_stays() -> None:
    assert _policies("idle") == ["False", str(os.SCHED_IDLE), str(os.SCHED_IDLE)]
