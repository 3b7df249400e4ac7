"""The end of a worker's process, in processes of their own: whatever hangs in them, they end by the stated time."""

import signal
import subprocess
import sys
import time

import pytest

from tests.processes import children, descendants, until_gone

LATE = """
import ctypes, os, signal, sys, threading, time, types
from workers.consumer import process_end

process_end.SPARE_S = 0.5
end = process_end.ProcessEnd(lambda: 7)
{body}
"""
WAITS = "threading.Event().wait()"
KEEPS_THE_INTERPRETER = "ctypes.PyDLL(None).sleep(600)"
FREES_FOR_EVER = """
class Model:
    def __del__(self, sleep=time.sleep):
        sleep(600)

end.within(1.0)
sys.modules["model"] = types.ModuleType("model")
sys.modules["model"].model = Model()
sys.exit()
"""


@pytest.mark.parametrize(
    ("body", "code", "told"),
    [
        (f"end.within(1.0)\n{WAITS}", 7, ""),
        (f"end.within(1.0)\nend.within(600)\n{WAITS}", 7, ""),
        (f"end.within(600)\nend.within(1.0)\n{WAITS}", 7, ""),
        (f"signal.signal(signal.SIGALRM, lambda *_: end.within(0.1))\nsignal.alarm(1)\n{WAITS}", 7, ""),
        (f"end.within(1.0)\n{KEEPS_THE_INTERPRETER}", 1, "Timeout (0:00:01.500000)!"),
        (FREES_FOR_EVER, 1, "Timeout (0:00:01.500000)!"),
    ],
    ids=["hangs", "a later time", "an earlier time", "in a handler", "keeps the interpreter", "frees for ever"],
)
def test_a_process_ends_by_the_time(body: str, code: int, told: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE.format(body=body)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    assert told in done.stderr


ENDS = """
import atexit, subprocess, sys, threading, types
from multiprocessing import resource_tracker
from workers.consumer.process_end import ProcessEnd, end_process

atexit.register(lambda: print("called", flush=True))
threading.Thread(target=threading.Event().wait).start()
below = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
subprocess.Popen([sys.executable, "-c", below], start_new_session=True)
resource_tracker.ensure_running()
print("ready", flush=True)
sys.stdin.readline()
{end}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("end", "code", "called"),
    [
        ("end_process(types.SimpleNamespace(exitcode=3))", 3, "called\n"),
        ("end_process(types.SimpleNamespace(exitcode=None))", 0, "called\n"),
        ("ProcessEnd(lambda: 4).within(0.1)", 4, ""),
    ],
    ids=["now", "without a code", "late"],
)
def test_a_process_ends_beside_a_thread_that_hangs_and_takes_all_below_it_with_it(
    end: str, code: int, called: str
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ENDS.format(end=end)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        began = time.monotonic()
        while len(below := descendants(process.pid)) < 3:
            assert time.monotonic() - began < 30, below
            time.sleep(0.01)
        assert len(children(process.pid)) == 2
        rest, _ = process.communicate("\n", timeout=30)
        assert (process.returncode, rest) == (code, called)
        until_gone(below, 30)
    finally:
        process.send_signal(signal.SIGKILL)
