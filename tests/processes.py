"""Processes as /proc shows them: which live, and which started which."""

import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch


@contextmanager
def one_process_an_engine() -> Iterator[None]:
    """vLLM's engines for CPUs that start inside run their model in their own process, as in the embedded stack.

    That saves an import of vLLM, eight seconds of processor time. Tests of an engine's processes do without.
    """
    with patch.dict(os.environ, {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}):
        yield


def _parents() -> dict[int, int]:
    """Process → its parent, without zombies."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it ended meanwhile
            continue
        if state not in "ZX":
            parents[int(path.parent.name)] = int(parent)
    return parents


def descendants(pid: int) -> list[int]:
    """The processes below ``pid``, its children first."""
    parents = _parents()
    below: list[int] = []
    generation = [pid]
    while generation:
        generation = [child for child, parent in parents.items() if parent in generation]
        below += generation
    return below


def children(pid: int) -> list[int]:
    """The processes that ``pid`` started and that live."""
    return [child for child, parent in _parents().items() if parent == pid]


def named(pid: int, name: bytes) -> list[int]:
    """The processes below ``pid`` that have ``name`` in their command line."""
    return [below for below in descendants(pid) if name in command_line(below).encode()]


def command_line(pid: int) -> str:
    """A process's words, with spaces between them; empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def lives(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    return pid in _parents()


def _shown(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        stat = "ended"
    return f"{pid} ({command_line(pid)}): {stat}"


def until_gone(pids: Collection[int], within_s: float) -> float:
    """Wait until none of the processes lives; return the seconds that took. Raises AssertionError when it is late."""
    began = time.monotonic()
    while left := [pid for pid in pids if lives(pid)]:
        assert time.monotonic() - began < within_s, f"still live: {[_shown(pid) for pid in left]}"
        time.sleep(0.01)
    return time.monotonic() - began
