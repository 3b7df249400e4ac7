import os
import subprocess
import sys
from pathlib import Path

import pytest

from workers.allocator import keep_freed_memory

# What an engine's thread does: it asks for blocks, writes to them and frees them, again and again.
_ASK_AGAIN = """
import resource, sys, threading
import torch
from workers.allocator import keep_freed_memory

if sys.argv[1] == "keep":
    print(keep_freed_memory())

def ask():
    return [torch.empty(2 << 20).fill_(1.0) for _ in range(24)]

def work():
    for _ in range(3):
        ask()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(3):
        ask()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def _faults(*how: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _ASK_AGAIN, *how],
        cwd=Path(__file__).parents[2],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.split()


def _glibc() -> bool:
    return "CS_GNU_LIBC_VERSION" in os.confstr_names and bool(os.confstr("CS_GNU_LIBC_VERSION"))


@pytest.mark.skipif(sys.platform != "linux" or not _glibc(), reason="glibc's limits are set")
def test_memory_that_was_freed_is_not_faulted_in_again() -> None:
    kept, faults = _faults("keep")
    assert kept == "True"
    [without] = _faults("leave")
    assert 10 * int(faults) < int(without)


def test_what_the_operator_sets_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    assert not keep_freed_memory()
