"""Threads' turns: short while somebody asks for it, as they were afterwards."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from omni_jobs.api.switch_interval import TURNS, Turns, short_turns


@pytest.fixture(autouse=True)
def usual() -> Iterator[float]:
    usual = sys.getswitchinterval()
    yield usual
    sys.setswitchinterval(usual)


def test_turns_are_short_until_the_last_has_ended(usual: float) -> None:
    turns = Turns()
    turns.shorten()
    turns.shorten()
    turns.restore()
    assert sys.getswitchinterval() < usual / 10
    turns.restore()
    assert sys.getswitchinterval() == usual
    turns.shorten()
    assert sys.getswitchinterval() < usual / 10


def test_one_who_fails_has_them_restored(usual: float) -> None:
    with pytest.raises(KeyError), short_turns():
        raise KeyError
    assert sys.getswitchinterval() == usual


def test_many_threads_leave_them_as_they_were(usual: float) -> None:
    def shorten() -> None:
        for _ in range(2000):
            TURNS.shorten()
            TURNS.restore()

    threads = [threading.Thread(target=shorten) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sys.getswitchinterval() == usual
