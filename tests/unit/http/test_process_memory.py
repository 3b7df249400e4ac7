"""The memory that the API's allocator returns to the kernel, measured in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from omni_jobs.http.process import give_freed_memory_back

# Strings of 40 kB on several threads, every other of which is freed: gaps that glibc keeps.
_GAPS = """
import sys, threading
from pathlib import Path
from omni_jobs.http.process import give_freed_memory_back, trim

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if sys.argv[1] == "back":
    assert give_freed_memory_back()
before = resident()
kept = []

def work():
    all_ = [bytes([n % 256]) * 40_000 for n in range(1500)]
    kept.append(all_[::2])

threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
if sys.argv[1] == "back":
    trim()
print(resident() - before)
"""


def _grown(how: str) -> int:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", _GAPS, how],
        cwd=Path(__file__).parents[3],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="glibc's")
def test_what_is_free_in_between_goes_back() -> None:
    assert _grown("back") < 0.75 * _grown("keep")


def test_what_the_operator_sets_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "8")
    assert not give_freed_memory_back()
