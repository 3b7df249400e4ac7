"""Steps of the tests of the embedded stack."""

import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from omni_jobs.client import user_message

OMNI_JOBS = [sys.executable, "-m", "omni_jobs.cli"]


def echo(text: str, **parameters: Any) -> dict[str, Any]:
    return {
        "model": "echo",
        "messages": [user_message(text)],
        "modalities": ["text"],
        "stages": {"first": parameters} if parameters else {},
    }


def sessions_of(pids: Iterable[int]) -> set[int]:
    """The sessions of those processes that have not ended meanwhile."""
    found = set()
    for pid in pids:
        with suppress(ProcessLookupError):
            found.add(os.getsid(pid))
    return found


def until(true: Callable[[], object], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {limit_s:g} s")
        time.sleep(0.05)


def children_of(pid: int) -> set[int]:
    """The sessions a stack's supervisor has started: its children lead them."""
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return {int(child) for path in found for child in path.read_text(encoding="utf-8").split()}
