"""Threads' turns: short while somebody asks for it, as they were afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from omni_jobs.api.turns import Turns


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
